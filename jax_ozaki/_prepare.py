"""Operands quantized once and multiplied many times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from . import _dimensions, _field, _quantize, _stages
from ._compat import Primitive, ad, allow_partitioning, annotate_sharding, batching, dot_general_p, evaluate_eagerly
from ._contract import Contract, resolve
from ._dimensions import DimensionNumbers, Groups
from ._operand import Operand, view
from ._partition import Factors, partitioned, product_factors
from ._primitive import bind, check, lower, lower_stages, product, result_shape, transpose_lhs, transpose_rhs
from ._stages import Quantized

Side = Literal["lhs", "rhs"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("array", "quantized"),
    meta_fields=("side", "contract", "moduli"),
)
@dataclass(frozen=True)
class Prepared:
    """A matrix, or a stack of them, with its quantized form; made by :func:`prepare`.

    The array itself is the differentiable leaf. Every leaf has the stack's axes first, so a Prepared can
    be mapped by ``vmap``, carried by ``scan`` and passed through ``jit``.

    Differentiate with respect to the array, preparing it inside; ``jax.grad`` over a Prepared argument needs
    ``allow_int=True``. A leaf must not be changed without the others: they are one matrix.
    """

    array: Array
    """float64 or complex128, [*stack, m, k] for side "lhs", [*stack, k, n] for side "rhs"."""
    quantized: Quantized
    side: Side
    contract: Contract
    moduli: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def contracted_axis(self) -> int:
        return self.ndim - (1 if self.side == "lhs" else 2)


def prepare(a: Any, side: Side = "lhs", contract: Contract | None = None) -> Prepared:
    """Quantize ``a`` once, to multiply it many times with ``matmul`` or ``dot``.

    Products of the result have the bits of the unprepared product, and gradients with respect to ``a``
    are those of ``a``. A float64 operand that meets a prepared complex128 one is widened first: unprepared, the two
    would be one real product, with other moduli.

    Arguments:
        a: float64 or complex128 of shape (..., m, k) for side "lhs", (..., k, n) for side "rhs".
        side: the side of the product that it will stand on.
        contract: the contract of its products; the default contract if None.

    Raises:
        TypeError: ``a`` is neither a float64 nor a complex128 array.
        ValueError: ``a`` has fewer than two axes, ``side`` is neither "lhs" nor "rhs", or the contract is
            native, cannot be kept for this k, or is certified and ``a`` complex.
    """
    if side not in ("lhs", "rhs"):
        raise ValueError(f'side={side!r}: "lhs" or "rhs" is needed.')
    a = jnp.asarray(a)
    if a.dtype not in _field.DTYPES:
        raise TypeError(f"a has dtype {a.dtype}: only float64 and complex128 are prepared.")
    if a.ndim < 2:
        raise ValueError(f"a has shape {a.shape}: at least two axes are needed.")
    contract = resolve(contract)
    if contract.kind == "native":
        raise ValueError("contract=native: a native product has nothing to prepare.")
    if not preparable(contract, a.dtype):
        raise ValueError(f"contract={contract}: complex128 is prepared under moduli, mantissa or normwise contracts.")
    k_axis, row_axis = (a.ndim - 1, a.ndim - 2) if side == "lhs" else (a.ndim - 2, a.ndim - 1)
    moduli = contract.modulus_count(a.shape[k_axis], a.dtype)
    groups = Groups(tuple(range(a.ndim - 2)), (row_axis,), (k_axis,))
    return Prepared(a, _quantize.quantize(a, groups, moduli), side, contract, moduli)


def preparable(contract: Contract, dtype: Any) -> bool:
    """Whether a product under ``contract`` can use operands of ``dtype`` quantized before it is known.

    A certified product of complex operands is a real one of other operands.
    """
    return contract.kind != "native" and not (contract.certified and dtype == jnp.complex128)


def multiply(
    lhs: Array | Prepared, rhs: Array | Prepared, *, dimension_numbers: DimensionNumbers, workspace_bytes: int
) -> Array:
    """The product of two operands of one dtype of which at least one is prepared."""
    prepared = [x if isinstance(x, Prepared) else None for x in (lhs, rhs)]
    (contract, moduli), *others = {(x.contract, x.moduli) for x in prepared if x}
    if others:
        raise ValueError(f"lhs was prepared for {prepared[0].contract}, rhs for {prepared[1].contract}.")  # type: ignore[union-attr]
    # Rows of either operand are quantized alike, so either side will do; the contracted axis is given.
    for x, axes in zip(prepared, dimension_numbers[0], strict=True):
        if x and axes != (x.contracted_axis,):
            raise ValueError(
                f"an operand of shape {x.shape} prepared as {x.side!r} can be contracted over its axis "
                f"{x.contracted_axis} only; here it is contracted over {axes}."
            )
    arrays = [x.array if isinstance(x, Prepared) else x for x in (lhs, rhs)]
    quantized = [leaf for x in prepared if x for leaf in x.quantized]
    return ozaki_prepared_dot_general_p.bind(
        *arrays,
        *quantized,
        prepared=(prepared[0] is not None, prepared[1] is not None),
        moduli=moduli,
        dimension_numbers=dimension_numbers,
        contract=contract,
        workspace_bytes=workspace_bytes,
    )


ozaki_prepared_dot_general_p = Primitive("ozaki_prepared_dot_general")
"""(lhs, rhs, *quantized lhs if prepared, *quantized rhs if prepared) -> product. Linear in lhs and in rhs
only through the arrays: the quantized leaves are those of the same values."""
evaluate_eagerly(ozaki_prepared_dot_general_p)


@ozaki_prepared_dot_general_p.def_abstract_eval
def _abstract_eval(
    lhs: Any,
    rhs: Any,
    *quantized: Any,
    dimension_numbers: DimensionNumbers,
    contract: Contract,
    workspace_bytes: int,
    **_: Any,
) -> Any:
    del quantized
    check(lhs, rhs, dimension_numbers, contract, workspace_bytes)
    aval, _effects = dot_general_p.abstract_eval(
        lhs, rhs, dimension_numbers=dimension_numbers, precision=None, preferred_element_type=None, out_sharding=None
    )
    return aval


def _split(quantized: tuple[Any, ...], prepared: tuple[bool, bool]) -> list[tuple[Any, ...]]:
    """The quantized leaves of lhs and of rhs, empty where it is not prepared."""
    width = len(Quantized._fields)
    first = width if prepared[0] else 0
    return [quantized[:first], quantized[first:]]


def _jvp(primals: Any, tangents: Any, *, prepared: tuple[bool, bool], moduli: int, **params: Any) -> Any:
    lhs, rhs, *quantized = primals
    of_lhs, of_rhs = _split(tuple(quantized), prepared)
    result = ozaki_prepared_dot_general_p.bind(*primals, prepared=prepared, moduli=moduli, **params)
    terms = []
    # The factor that stays keeps its quantized form.
    for tangent, operands, kept, keeps in (
        (tangents[0], (tangents[0], rhs), of_rhs, (False, prepared[1])),
        (tangents[1], (lhs, tangents[1]), of_lhs, (prepared[0], False)),
    ):
        if isinstance(tangent, ad.Zero):
            continue
        if any(keeps):
            terms.append(ozaki_prepared_dot_general_p.bind(*operands, *kept, prepared=keeps, moduli=moduli, **params))
        else:
            terms.append(bind(*operands, **params))
    aval = jax.typeof(result)
    return result, sum(terms[1:], terms[0]) if terms else ad.Zero(aval.to_tangent_aval())


ad.primitive_jvps[ozaki_prepared_dot_general_p] = _jvp


def _transpose(cotangent: Any, lhs: Any, rhs: Any, *quantized: Any, prepared: Any, moduli: int, **params: Any) -> Any:
    del prepared, moduli
    none = [None] * len(quantized)
    if ad.is_undefined_primal(lhs):
        zero = isinstance(cotangent, ad.Zero)
        return [ad.Zero(lhs.aval) if zero else transpose_lhs(cotangent, lhs, rhs, **params), None, *none]
    zero = isinstance(cotangent, ad.Zero)
    return [None, ad.Zero(rhs.aval) if zero else transpose_rhs(cotangent, lhs, rhs, **params), *none]


ad.primitive_transposes[ozaki_prepared_dot_general_p] = _transpose


def _batch(
    operands: Any, axes: Any, *, prepared: tuple[bool, bool], dimension_numbers: DimensionNumbers, **params: Any
) -> Any:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)

    def to_front(x: Array, axis: int | None) -> Array:
        return jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)

    arrays, mapped = list(operands[:2]), list(axes[:2])
    quantized: list[Array] = []
    leaves = zip(_split(operands[2:], prepared), _split(axes[2:], prepared), strict=True)
    for i, (of_operand, of_axes) in enumerate(leaves):
        # A prepared operand keeps its stack first, so a mapped axis joins it at the front.
        if any(axis is not None for axis in (mapped[i], *of_axes)) and of_operand:
            arrays[i], mapped[i] = to_front(arrays[i], mapped[i]), 0
            of_operand = tuple(map(to_front, of_operand, of_axes))
        quantized += of_operand
    dimension_numbers, axis = _dimensions.batched(dimension_numbers, [x.ndim for x in arrays], mapped)
    result = ozaki_prepared_dot_general_p.bind(
        *arrays, *quantized, prepared=prepared, dimension_numbers=dimension_numbers, **params
    )
    return result, axis


batching.primitive_batchers[ozaki_prepared_dot_general_p] = _batch


def _staged(
    lhs: Array,
    rhs: Array,
    *quantized: Array,
    stages: _stages.Stages,
    prepared: tuple[bool, bool],
    contract: Contract,
    groups: tuple[Groups, Groups],
    workspace_bytes: int,
) -> Array:
    shape = result_shape(lhs.shape, rhs.shape, groups)
    extents = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    if 0 in extents:
        return jnp.zeros(shape, lhs.dtype)

    def rows_of(x: Array, of_x: Groups, leaves: tuple[Array, ...]) -> _stages.Rows:
        operand = view(x, of_x)
        return _stages.Rows(operand, _grouped(Quantized(*leaves), of_x, operand) if leaves else None)

    rows, columns = map(rows_of, (lhs, rhs), groups, _split(quantized, prepared))
    return lax.reshape(product(stages, rows, columns, contract, workspace_bytes), shape)


def _grouped(quantized: Quantized, groups: Groups, operand: Operand) -> Quantized:
    """Leaves with the batch first, then the moduli and the rows, as the stages want them.

    Any axis but the contracted one may be a batch or a free axis of this product, the rows' too.
    """
    stack = quantized.scale.ndim - 1
    # Where the leaves of residues and of scales keep an axis of the array.
    batch, free = ([min(axis, stack) for axis in axes] for axes in (groups.batch, groups.free))
    residue_batch, residue_free = ([axis + (axis == stack) for axis in axes] for axes in (batch, free))
    residues = jnp.transpose(quantized.residues, (*residue_batch, stack, *residue_free, stack + 2))
    rowwise = (*batch, *free)
    return Quantized(
        residues.reshape(operand.batch, residues.shape[len(batch)], operand.rows, residues.shape[-1]),
        jnp.transpose(quantized.scale, rowwise).reshape(operand.batch, operand.rows),
        jnp.transpose(quantized.statistics, (*rowwise, stack + 1)).reshape(operand.batch, operand.rows, -1),
    )


def _lower(
    ctx: Any,
    *operands: Any,
    stages: _stages.Stages,
    prepared: tuple[bool, bool],
    dimension_numbers: DimensionNumbers,
    moduli: int,
    **params: Any,
) -> Any:
    del moduli
    groups = _dimensions.groups(dimension_numbers, *(aval.ndim for aval in ctx.avals_in[:2]))
    factors, of_result = product_factors(groups)
    of_leaves: list[Factors] = []
    for is_prepared, of_array, of_operand in zip(prepared, factors, groups, strict=True):
        if is_prepared:
            (k,) = of_operand.contract
            kept = [axis for axis in range(len(of_array)) if axis != k]
            of_leaves += _quantize.result_factors(of_array, Groups(tuple(kept[:-1]), tuple(kept[-1:]), (k,)))
    multiply = partial(_staged, stages=stages, prepared=prepared, groups=groups, **params)
    partition = partial(partitioned, operands=[*factors, *of_leaves], results=[of_result])
    (result,) = lower_stages(multiply, partition, ctx, *operands)
    return [annotate_sharding(ctx, result, ctx.avals_out[0])]


lower(ozaki_prepared_dot_general_p, _lower)
allow_partitioning(ozaki_prepared_dot_general_p)
