"""``ozaki_prepared_dot_general_p``: the product of operands of which one or both come with their quantized rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from . import _dimensions, _field, _primitive, _quantize, _stages
from ._compat import (
    Primitive,
    ad,
    allow_partitioning,
    annotate_sharding,
    batching,
    evaluate_eagerly,
    mapped_sharding,
)
from ._contract import Contract
from ._dimensions import DimensionNumbers, Groups
from ._operand import Operand, view
from ._partition import Factors, partitioned, product_factors
from ._plan import padded_k
from ._primitive import lower, lower_stages, product, result_shape, transpose_lhs, transpose_rhs
from ._stages import Quantized


class Factor(NamedTuple):
    """An operand of a product."""

    array: Array
    forms: tuple[Quantized, ...] = ()
    """Its quantized rows, of which the contracted axis is one of its last two. A second form, along the other one
    of them, is that of the product's transpose."""
    invariant: bool = False
    """Whether no loop around the product changes it."""

    @property
    def leaves(self) -> list[Array]:
        return [leaf for form in self.forms for leaf in form]


def quantized(x: Array, groups: Groups, contract: Contract) -> Quantized:
    """The rows of ``x`` for products under ``contract`` that contract one axis."""
    (k,) = groups.contract
    return _quantize.quantize(x, groups, contract.modulus_count(x.shape[k], x.dtype), contract.fewer(x.shape[k]))


def fits(shape: Sequence[int], axis: int, contract: Contract, dtype: Any, workspace_bytes: int) -> bool:
    """Whether the residues of an array whose rows lie along ``axis`` may be held."""
    k = shape[axis]
    try:
        planes = _field.of(dtype).parts * contract.modulus_count(k, dtype)
    except ValueError:  # no product keeps the contract; whoever asks for one is told so
        return False
    return planes * math.prod(shape) // max(k, 1) * padded_k(k) <= workspace_bytes


ozaki_prepared_dot_general_p = Primitive("ozaki_prepared_dot_general")
"""(lhs, rhs, *leaves of the forms of lhs, *those of rhs) -> product; ``forms`` counts them. Linear in lhs and in rhs
only through the arrays: the quantized leaves are those of the same values."""
evaluate_eagerly(ozaki_prepared_dot_general_p)


def bind(lhs: Factor, rhs: Factor, **params: Any) -> Array:
    """The product of two factors, with the parameters of ``_primitive.bind``."""
    if not (lhs.forms or rhs.forms):
        return _primitive.bind(lhs.array, rhs.array, **params)
    return ozaki_prepared_dot_general_p.bind(
        lhs.array,
        rhs.array,
        *lhs.leaves,
        *rhs.leaves,
        forms=(len(lhs.forms), len(rhs.forms)),
        invariant=(lhs.invariant, rhs.invariant),
        **params,
    )


def _factors(operands: Sequence[Any], forms: tuple[int, int], invariant: tuple[bool, bool]) -> list[Factor]:
    """The factors whose arrays and leaves are the operands of the primitive."""
    lhs, rhs, *leaves = operands
    width = len(Quantized._fields)
    found = [Quantized(*leaves[i : i + width]) for i in range(0, len(leaves), width)]
    of_lhs, of_rhs = tuple(found[: forms[0]]), tuple(found[forms[0] :])
    return [Factor(lhs, of_lhs, invariant[0]), Factor(rhs, of_rhs, invariant[1])]


@ozaki_prepared_dot_general_p.def_effectful_abstract_eval
def _abstract_eval(lhs: Any, rhs: Any, *leaves: Any, forms: Any, invariant: Any, **params: Any) -> Any:
    del leaves, forms, invariant
    return _primitive.abstract_eval(lhs, rhs, **params)


# Derivatives. The factor that stays keeps its forms.


def _jvp(primals: Any, tangents: Any, *, forms: Any, invariant: Any, **params: Any) -> Any:
    result = ozaki_prepared_dot_general_p.bind(*primals, forms=forms, invariant=invariant, **params)
    factors = _factors(primals, forms, invariant)
    terms = []
    for side in range(2):
        if isinstance(tangents[side], ad.Zero):
            continue
        varying, fixed = Factor(tangents[side]), _with_transpose(factors[1 - side], 1 - side, **params)
        terms.append(bind(*((varying, fixed) if side == 0 else (fixed, varying)), **params))
    aval = jax.typeof(result)
    return result, sum(terms[1:], terms[0]) if terms else ad.Zero(aval.to_tangent_aval())


def _with_transpose(
    factor: Factor,
    side: int,
    *,
    dimension_numbers: DimensionNumbers,
    contract: Contract,
    workspace_bytes: int,
    out_sharding: Any,
) -> Factor:
    """A factor with the form for the product's transpose too, if it has one and a loop will not change it.

    It is made here, where derivatives are taken, because only what is known before a loop backwards is traced
    leaves it: jax's partial evaluation moves it out then.
    """
    del out_sharding
    array, forms, invariant = factor
    (k,) = dimension_numbers[0][side]
    rows = _only_free_axis(array.ndim, k, dimension_numbers[1][side])
    if not invariant or len(forms) != 1 or rows is None:
        return factor
    if not fits(array.shape, rows, contract, array.dtype, workspace_bytes):
        return factor
    groups = Groups(tuple(range(array.ndim - 2)), (k,), (rows,))
    return factor._replace(forms=(*forms, quantized(array, groups, contract)))


def _only_free_axis(ndim: int, contracted: int, batch: tuple[int, ...]) -> int | None:
    """The axis that a transposed product contracts, if it is one alone."""
    free = [axis for axis in range(ndim) if axis != contracted and axis not in batch]
    return free[0] if len(free) == 1 and free[0] >= ndim - 2 else None


ad.primitive_jvps[ozaki_prepared_dot_general_p] = _jvp


def _transpose(cotangent: Any, lhs: Any, rhs: Any, *leaves: Any, forms: Any, invariant: Any, **params: Any) -> Any:
    linear = 0 if ad.is_undefined_primal(lhs) else 1
    none = [None] * len(leaves)
    if isinstance(cotangent, ad.Zero):
        zero = ad.Zero((lhs, rhs)[linear].aval)
        return [zero, None, *none] if linear == 0 else [None, zero, *none]
    fixed = _factors((lhs, rhs, *leaves), forms, invariant)[1 - linear]

    def multiply(left: Array, right: Array, **params: Any) -> Array:
        if len(fixed.forms) < 2:
            return _primitive.bind(left, right, **params)
        reversed_forms = fixed._replace(forms=fixed.forms[::-1])
        operands = (Factor(left), reversed_forms) if linear == 0 else (reversed_forms, Factor(right))
        return bind(*operands, **params)

    if linear == 0:
        return [transpose_lhs(cotangent, lhs, rhs, multiply=multiply, **params), None, *none]
    return [None, transpose_rhs(cotangent, lhs, rhs, multiply=multiply, **params), *none]


ad.primitive_transposes[ozaki_prepared_dot_general_p] = _transpose


def _batch(
    axis_data: Any,
    operands: Any,
    axes: Any,
    *,
    forms: Any,
    invariant: Any,
    dimension_numbers: DimensionNumbers,
    out_sharding: Any,
    **params: Any,
) -> Any:
    def to_front(x: Array, axis: Any) -> Array:
        return jnp.broadcast_to(x, (axis_data.size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)

    factors, mapped = [], []
    for factor, of in zip(_factors(operands, forms, invariant), _factors(axes, forms, invariant), strict=True):
        axis: Any = of.array
        # A prepared operand keeps its stack first, so a mapped axis joins it at the front.
        if factor.forms and any(x is not None for x in (axis, *of.leaves)):
            moved = [Quantized(*map(to_front, *leaves)) for leaves in zip(factor.forms, of.forms, strict=True)]
            factor, axis = Factor(to_front(factor.array, axis), tuple(moved), factor.invariant), 0
        factors.append(factor)
        mapped.append(axis)
    result_axis = None
    if mapped != [None, None]:
        ndims = [x.array.ndim for x in factors]
        dimension_numbers, result_axis = _dimensions.batched(dimension_numbers, ndims, mapped)
        if out_sharding is not None:
            out_sharding = mapped_sharding(axis_data, out_sharding, result_axis)
    for side, factor in enumerate(factors):
        contract, batch = (by_side[side] for by_side in dimension_numbers)
        # Mapped alone it has a second free axis, and its transpose contracts both.
        if len(factor.forms) == 2 and _only_free_axis(factor.array.ndim, contract[0], batch) is None:
            factors[side] = factor._replace(forms=factor.forms[:1])
    result = bind(*factors, dimension_numbers=dimension_numbers, out_sharding=out_sharding, **params)
    return result, result_axis


batching.fancy_primitive_batchers[ozaki_prepared_dot_general_p] = _batch


# Lowering.


def _staged(
    lhs: Array,
    rhs: Array,
    *leaves: Array,
    stages: _stages.Stages,
    prepared: tuple[int, int],
    contract: Contract,
    groups: tuple[Groups, Groups],
    workspace_bytes: int,
) -> Array:
    shape = result_shape(lhs.shape, rhs.shape, groups)
    extents = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    if 0 in extents:
        return jnp.zeros(shape, lhs.dtype)

    def rows_of(factor: Factor, of_factor: Groups) -> _stages.Rows:
        operand = view(factor.array, of_factor)
        return _stages.Rows(operand, next((_grouped(form, of_factor, operand) for form in factor.forms), None))

    rows, columns = map(rows_of, _factors((lhs, rhs, *leaves), prepared, (False, False)), groups)
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
    forms: tuple[int, int],
    invariant: tuple[bool, bool],
    dimension_numbers: DimensionNumbers,
    out_sharding: Any,
    **params: Any,
) -> Any:
    del out_sharding  # in the result's aval
    groups = _dimensions.groups(dimension_numbers, *(aval.ndim for aval in ctx.avals_in[:2]))
    # Forms for transposes are not read.
    values, avals = (
        [x._replace(forms=x.forms[:1]) for x in _factors(by, forms, invariant)] for by in (operands, ctx.avals_in)
    )
    flat_values, flat_avals = ([x.array for x in by] + [y for x in by for y in x.leaves] for by in (values, avals))
    prepared = len(values[0].forms), len(values[1].forms)
    of_arrays, of_result = product_factors(groups)
    of_leaves: list[Factors] = []
    for factor, of_array, of_operand in zip(values, of_arrays, groups, strict=True):
        if factor.forms:
            (k,) = of_operand.contract
            kept = [axis for axis in range(len(of_array)) if axis != k]
            of_leaves += _quantize.result_factors(of_array, Groups(tuple(kept[:-1]), tuple(kept[-1:]), (k,)))
    multiply = partial(_staged, stages=stages, prepared=prepared, groups=groups, **params)
    partition = partial(partitioned, operands=[*of_arrays, *of_leaves], results=[of_result])
    (result,) = lower_stages(multiply, partition, ctx.replace(avals_in=flat_avals), *flat_values)
    return [annotate_sharding(ctx, result, ctx.avals_out[0])]


lower(ozaki_prepared_dot_general_p, _lower)
allow_partitioning(ozaki_prepared_dot_general_p)
