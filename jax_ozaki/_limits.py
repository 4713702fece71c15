"""In words: what limits a given product."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import _quantize, _reference, _rungs
from ._certify import certify
from ._contract import Contract, resolve
from ._dimensions import Groups
from ._report import report

_HOW = {
    _rungs.COARSE: "certified by coarse magnitudes",
    _rungs.FINE: "certified by fine magnitudes",
    _rungs.WIDE: "made of {wide} moduli",
    _rungs.SUM: "summed as integers",
}


def explain(a: Any, b: Any, contract: Contract | None = None) -> str:
    """What limits the product of ``a`` and ``b``, in one to few lines for a person.

    Which rungs of the ladder give the outputs of a certified product and which rows or columns push them up; for
    other contracts, which rows and columns keep the fewest bits. The operands are read on the host.

    Arguments:
        a: float64 of shape (m, k) or (k,).
        b: float64 of shape (k, n) or (k,).
        contract: the default contract if None.

    Raises:
        TypeError: an operand is traced, or not float64.
        ValueError: the shapes do not multiply, or the contract cannot be kept for this k.
    """
    contract = resolve(contract)
    for name, operand in (("a", a), ("b", b)):
        if isinstance(operand, jax.core.Tracer):
            raise TypeError(f"{name} is traced: what limits a product is read on the host, outside jit, vmap and grad.")
    arrays = [jnp.asarray(x) for x in (a, b)]
    for name, x in zip("ab", arrays, strict=True):
        if x.dtype != jnp.float64:
            raise TypeError(f"{name} has dtype {x.dtype}: float64 is explained.")
        if x.ndim not in (1, 2):
            raise ValueError(f"{name} has shape {x.shape}: one or two axes are needed.")
    lhs, rhs = jnp.atleast_2d(arrays[0]), arrays[1] if arrays[1].ndim == 2 else arrays[1][:, None]
    (m, k), n = lhs.shape, rhs.shape[1]
    if rhs.shape[0] != k:
        raise ValueError(f"a has shape {arrays[0].shape} and b {arrays[1].shape}: the contracted sizes differ.")
    head = f"{contract}, ({m}, {k}) x ({k}, {n})"
    if contract.kind == "native" or 0 in (m, n, k):
        return f"{head}: {'XLA multiplies' if contract.kind == 'native' else 'nothing to multiply'}."

    moduli = contract.modulus_count(k)
    with jax.enable_x64(True):
        rows, columns = (
            _spans(*_quantize.statistics(x, groups, moduli))
            for x, groups in ((lhs, Groups((), (0,), (1,))), (rhs, Groups((), (1,), (0,))))
        )
    lines = [f"{head}: " + (_climbed if contract.certified else _kept)(lhs, rhs, rows, columns, contract)]
    special = [int(x.special.sum()) for x in (rows, columns)]
    if any(special):
        lines.append(f"{special[0]} rows and {special[1]} columns hold NaN or Inf: their outputs are classified.")
    return "\n".join(lines)


class _Spans(NamedTuple):
    """Of every row: the bits from its largest to its lowest, those above its integers' unit, what is special."""

    span: np.ndarray
    kept: np.ndarray
    special: np.ndarray

    @property
    def rounded(self) -> np.ndarray:
        return ~self.special & (self.kept < self.span)


def _spans(scale: Any, table: Any) -> _Spans:
    scale, table = np.asarray(scale, np.int64), np.asarray(table)
    special = scale <= _reference.SCALE_INF
    return _Spans(table[:, 0] - table[:, 1], table[:, 0] + np.where(special, 0, scale), special)


def _named(name: str, index: int, of: _Spans) -> str:
    return f"{name} {index} spans {of.span[index]} bits"


def _worst(rows: _Spans, columns: _Spans, of_rows: np.ndarray, of_columns: np.ndarray) -> tuple[str, _Spans, int]:
    """The row or the column with the largest value."""
    i, j = int(of_rows.argmax()), int(of_columns.argmax())
    return ("row", rows, i) if of_rows[i] >= of_columns[j] else ("column", columns, j)


def _climbed(lhs: Any, rhs: Any, rows: _Spans, columns: _Spans, contract: Contract) -> str:
    k = lhs.shape[1]
    moduli = contract.modulus_count(k)
    dimension_numbers = (((1,), (0,)), ((), ()))
    rung = np.asarray(certify(lhs, rhs, dimension_numbers, contract)[0])
    found = report(lhs, rhs, dimension_numbers, contract)
    assert found.achieved is not None

    ways = dict(_HOW)
    if contract.kind == "exact":
        ways[_rungs.COARSE], ways[_rungs.SUM] = "made of exact residues", "summed as integers and rounded correctly"
    counts = {r: int((rung == r).sum()) for r in _rungs.RUNGS}
    parts = [
        f"{counts[r]} of {rung.size} outputs {ways[r].format(wide=contract.wide_modulus_count(k))}"
        for r in _rungs.RUNGS
        if counts[r]
    ]
    text = "; ".join(parts) + f", error at most {float(found.achieved):.4g} u |A||B|"
    climbed = rung >= _rungs.WIDE
    if not climbed.any():
        return f"{text}; {int(found.moduli)} moduli multiplied."
    # Of the rounded rows and columns with outputs on the upper rungs the one that loses most.
    lost = [np.where(of.rounded & climbed.any(axis), of.span - of.kept, -1) for of, axis in ((rows, 1), (columns, 0))]
    name, of, i = _worst(rows, columns, *lost)
    outputs = climbed[i] if name == "row" else climbed[:, i]
    return (
        f"{text}; {_named(name, i, of)} and {moduli} moduli keep the upper {of.kept[i]}, "
        f"too few for {int(outputs.sum())} of its {outputs.size} outputs."
    )


def _kept(lhs: Any, rhs: Any, rows: _Spans, columns: _Spans, contract: Contract) -> str:
    moduli = contract.modulus_count(lhs.shape[1])
    rounded = int(rows.rounded.sum()), int(columns.rounded.sum())
    if not any(rounded):
        return f"{moduli} moduli hold every row and column exactly."
    lost = [np.where(of.rounded, of.span - of.kept, -1) for of in (rows, columns)]
    name, of, i = _worst(rows, columns, *lost)
    return (
        f"{moduli} moduli; {rounded[0]} rows and {rounded[1]} columns are rounded; {_named(name, i, of)}, "
        f"its upper {of.kept[i]} are kept."
    )
