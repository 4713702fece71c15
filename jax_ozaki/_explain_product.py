"""What limits one given product, in words: ``jax_ozaki.explain``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _arguments, _complex, _field, _quantize, _reference, _rungs
from ._certify import certify
from ._contract import Contract, resolve
from ._dimensions import DimensionNumbers, Groups, extents, groups
from ._prepare import Prepared
from ._report import report
from ._rewrite import product_of_parts

_HOW = {
    _rungs.COARSE: "certified by coarse magnitudes",
    _rungs.FINE: "certified by fine magnitudes",
    _rungs.WIDE: "made of {wide} moduli",
    _rungs.SUM: "summed {how}",
}


def explain(a: Any, b: Any, contract: Contract | None = None) -> str:
    """What limits the product of ``a`` and ``b``, in one to few lines for a person.

    Which rungs of the ladder give the outputs of a certified product and which rows or columns push them up; for
    other contracts, which rows and columns keep the fewest bits. The operands are read on the host.

    Complex operands are explained by the float64 product that theirs comes down to, if it does.

    Arguments:
        a: of shape (m, k) or (k,), float64 or complex128 like b; one of the two may be narrower.
        b: of shape (k, n) or (k,).
        contract: the default contract if None.

    Raises:
        TypeError: an operand is traced or prepared, or neither is float64 or complex128.
        ValueError: the shapes do not multiply, or the contract cannot be kept for this k.
    """
    contract = resolve(contract)
    for name, operand in (("a", a), ("b", b)):
        if isinstance(operand, jax.core.Tracer):
            raise TypeError(f"{name} is traced: what limits a product is read on the host, outside jit, vmap and grad.")
        if isinstance(operand, Prepared):
            raise TypeError(f"{name} is prepared: its array, {name}.array, under {operand.contract} is explained.")
    arrays = [_arguments.array("a", a), _arguments.array("b", b)]
    if all(x.dtype not in _field.DTYPES for x in arrays):
        dtypes = " and ".join(x.dtype.name for x in arrays)
        needed = f"one of them has to be float64 or complex128 to be emulated.{_arguments.narrowed()}"
        raise TypeError(f"a and b have dtypes {dtypes}: {needed}")
    arrays = [_widened(x) for x in arrays]
    for name, x in zip("ab", arrays, strict=True):
        if x.ndim not in (1, 2):
            raise ValueError(f"{name} has shape {x.shape}: one or two axes are needed.")
    lhs, rhs = jnp.atleast_2d(arrays[0]), arrays[1] if arrays[1].ndim == 2 else arrays[1][:, None]
    (m, k), n = lhs.shape, rhs.shape[1]
    if rhs.shape[0] != k:
        raise ValueError(f"a has shape {arrays[0].shape} and b {arrays[1].shape}: the contracted sizes differ.")
    head = f"{contract}, ({m}, {k}) x ({k}, {n})"
    if contract.kind == "native" or 0 in (m, n, k):
        return f"{head}: {'XLA multiplies' if contract.kind == 'native' else 'nothing to multiply'}."

    with jax.enable_x64(True):
        product = _product(lhs, rhs, contract)
        lines = [f"{head}: " + (_climbed if contract.certified else _kept)(product, contract)]
        special = [int((~jnp.isfinite(x)).any(k_axis).sum()) for x, k_axis in ((lhs, 1), (rhs, 0))]
    if any(special):
        lines.append(f"{special[0]} rows and {special[1]} columns hold NaN or Inf: their outputs are classified.")
    return "\n".join(lines)


def _widened(x: Array) -> Array:
    """A narrower operand as it enters an emulated product."""
    if x.dtype in _field.DTYPES:
        return x
    with jax.enable_x64(True):
        return x.astype(jnp.complex128 if jnp.iscomplexobj(x) else jnp.float64)


class _Product(NamedTuple):
    """The product of operands of one dtype that is computed."""

    lhs: Array
    rhs: Array
    """[m, k] and [k, n], m or n twice as large where parts of complex numbers lie side by side."""
    moduli: int
    rows: _Spans
    columns: _Spans
    outputs: str
    """What an element of the result is."""


def _product(lhs: Array, rhs: Array, contract: Contract) -> _Product:
    m, n = lhs.shape[0], rhs.shape[1]
    row_of, column_of = np.arange(m), np.arange(n)
    outputs = "outputs"
    if by_parts := product_of_parts(lhs.dtype, rhs.dtype, contract):
        lhs, rhs = _operands_of_parts(by_parts, lhs, rhs)
        outputs = "real and imaginary parts of outputs"
        row_of = np.resize(row_of, lhs.shape[0])
        column_of = np.repeat(column_of, 2) if by_parts is _complex.embedded else np.resize(column_of, rhs.shape[1])
    moduli = contract.modulus_count(lhs.shape[1], lhs.dtype)
    rows = _spans(lhs, Groups((), (0,), (1,)), row_of, contract, moduli)
    columns = _spans(rhs, Groups((), (1,), (0,)), column_of, contract, moduli)
    return _Product(lhs, rhs, moduli, rows, columns, outputs)


def _operands_of_parts(by_parts: Callable[..., Array], lhs: Array, rhs: Array) -> tuple[Array, Array]:
    """The matrices of the float64 product that ``by_parts`` multiplies."""
    shown: list[Array] = []

    def show(lhs: Array, rhs: Array, dimension_numbers: DimensionNumbers, out_sharding: Any) -> Array:
        of_lhs, of_rhs = groups(dimension_numbers, lhs.ndim, rhs.ndim)
        m, n, k = extents(lhs.shape, rhs.shape, of_lhs, of_rhs)[1:]
        shown.append(lax.transpose(lhs, of_lhs.free + of_lhs.contract).reshape(m, k))
        shown.append(lax.transpose(rhs, of_rhs.contract + of_rhs.free).reshape(k, n))
        return jnp.zeros([x.shape[i] for x, by in ((lhs, of_lhs), (rhs, of_rhs)) for i in by.free])

    by_parts(lhs, rhs, (((1,), (0,)), ((), ())), None, product=show)
    return shown[0], shown[1]


class _Spans(NamedTuple):
    """Of every row: the bits from its largest to its lowest, those above its integers' unit, what is special."""

    span: np.ndarray
    kept: np.ndarray
    special: np.ndarray
    source: np.ndarray
    """The row of the operand that each is, or is a part of."""
    moduli: np.ndarray
    """Those whose scale each has."""

    @property
    def rounded(self) -> np.ndarray:
        return ~self.special & (self.kept < self.span)


def _spans(x: Array, groups: Groups, source: np.ndarray, contract: Contract, moduli: int) -> _Spans:
    (k,) = groups.contract
    fewer = contract.fewer(x.shape[k])
    found = _quantize.statistics(x, groups, moduli, fewer)
    scale, table = np.asarray(found[0], np.int64), np.asarray(found[1])
    emax, lsb, rounded = table[:, 0], table[:, 1], table[:, 6]
    special = scale <= _reference.SCALE_INF
    taken = np.where(rounded <= fewer.most_rounded, fewer.moduli, moduli) if fewer else np.full(rounded.shape, moduli)
    return _Spans(emax - lsb, emax + np.where(special, 0, scale), special, source, taken)


def _named(name: str, index: int, of: _Spans) -> str:
    return f"{name} {of.source[index]} spans {of.span[index]} bits"


def _worst(rows: _Spans, columns: _Spans, of_rows: np.ndarray, of_columns: np.ndarray) -> tuple[str, _Spans, int]:
    """The row or the column with the largest value."""
    i, j = int(of_rows.argmax()), int(of_columns.argmax())
    return ("row", rows, i) if of_rows[i] >= of_columns[j] else ("column", columns, j)


def _climbed(product: _Product, contract: Contract) -> str:
    lhs, rhs, _, rows, columns, outputs = product
    k = lhs.shape[1]
    dimension_numbers = (((1,), (0,)), ((), ()))
    rung = np.asarray(certify(lhs, rhs, dimension_numbers, contract)[0])
    found = report(lhs, rhs, dimension_numbers, contract)
    assert found.achieved is not None

    ways = dict(_HOW)
    if contract.kind == "exact":
        ways[_rungs.COARSE], ways[_rungs.SUM] = "made of exact residues", "summed as integers and rounded correctly"
    classified = rows.special[:, None] | columns.special
    counts = {r: int(((rung == r) & ~classified).sum()) for r in _rungs.RUNGS}
    of_all = f"of {rung.size} {outputs}"
    named = {"wide": contract.wide_modulus_count(k), "how": "in float64" if contract.sum_group(k) else "as integers"}
    parts = [f"{counts[r]} {of_all} {ways[r].format(**named)}" for r in _rungs.RUNGS if counts[r]]
    if classified.any():
        parts.append(f"{int(classified.sum())} {of_all} classified by NaN and Inf")
    text = "; ".join(parts)
    if not classified.all():
        text += f", error at most {float(found.achieved):.4g} u |A||B|"
    climbed = (rung >= _rungs.WIDE) & ~classified
    if not climbed.any():
        return f"{text}; {int(found.moduli)} moduli multiplied."
    # Of the rounded rows and columns with outputs on the upper rungs the one that loses most.
    lost = [np.where(of.rounded & climbed.any(axis), of.span - of.kept, -1) for of, axis in ((rows, 1), (columns, 0))]
    name, of, i = _worst(rows, columns, *lost)
    of_worst = climbed[i] if name == "row" else climbed[:, i]
    return (
        f"{text}; {_named(name, i, of)} and {of.moduli[i]} moduli keep the upper {of.kept[i]}, "
        f"too few for {int(of_worst.sum())} of its {of_worst.size} {outputs}."
    )


def _kept(product: _Product, contract: Contract) -> str:
    _, _, moduli, rows, columns, _ = product
    rounded = int(rows.rounded.sum()), int(columns.rounded.sum())
    if not any(rounded):
        return f"{moduli} moduli hold every row and column exactly."
    lost = [np.where(of.rounded, of.span - of.kept, -1) for of in (rows, columns)]
    name, of, i = _worst(rows, columns, *lost)
    return (
        f"{moduli} moduli; {rounded[0]} rows and {rounded[1]} columns are rounded; {_named(name, i, of)}, "
        f"its upper {of.kept[i]} are kept."
    )
