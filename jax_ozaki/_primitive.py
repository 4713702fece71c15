"""``ozaki_dot_general_p``: lax.dot_general for float64 and complex128, emulated.

One bilinear primitive carries every product.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from . import _dimensions, _field, _ladder, _ladder_shards, _rungs, _shards, _stages, _switch
from ._compat import (
    Primitive,
    ad,
    allow_partitioning,
    annotate_sharding,
    batching,
    dot_general_p,
    evaluate_eagerly,
    knows_mesh,
    mapped_sharding,
    mlir,
    package_flags,
    register_lowering,
    transpose_source,
)
from ._contract import Contract
from ._dimensions import DimensionNumbers, Groups
from ._operand import memory_order, view, views
from ._partition import of_plain_arrays, partitioned_product, partitioning
from ._plan import blocks, contract_blocks

ozaki_dot_general_p = Primitive("ozaki_dot_general")
evaluate_eagerly(ozaki_dot_general_p)


def bind(
    lhs: Array,
    rhs: Array,
    *,
    dimension_numbers: DimensionNumbers,
    contract: Contract,
    workspace_bytes: int,
    out_sharding: Any = None,
) -> Array:
    """The emulated product of two float64 or two complex128 arrays, with lax.dot_general's shapes and errors.

    Raises ValueError for a contract that cannot be kept for this k, or a workspace that is too small.
    """
    return ozaki_dot_general_p.bind(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        contract=contract,
        workspace_bytes=workspace_bytes,
        out_sharding=out_sharding,
    )


def abstract_eval(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DimensionNumbers,
    contract: Contract,
    workspace_bytes: int,
    out_sharding: Any,
) -> Any:
    """lax.dot_general's own rule, and the checks of the contract and the workspace."""
    result = dot_general_p.abstract_eval(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        precision=None,
        preferred_element_type=None,
        out_sharding=out_sharding,
    )
    check(lhs, rhs, dimension_numbers, contract, workspace_bytes)
    if out_sharding is not None and out_sharding.spec.unreduced:
        raise NotImplementedError(
            f"out_sharding={out_sharding.spec}: the sum of an emulated product is exact and rounded once, it cannot be "
            "left unreduced."
        )
    return result


def check(lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, contract: Contract, workspace_bytes: int) -> None:
    """Raise for operands, a contract or a workspace that no product is made of."""
    for name, operand in (("lhs", lhs), ("rhs", rhs)):
        if operand.dtype not in _field.DTYPES:
            raise TypeError(f"{name} has dtype {operand.dtype}: an emulated product takes float64 or complex128.")
        if not all(isinstance(size, int) for size in operand.shape):
            raise TypeError(f"{name} has the symbolic shape {operand.shape}: an emulated product needs known sizes.")
    if lhs.dtype != rhs.dtype:
        raise TypeError(f"lhs has dtype {lhs.dtype} and rhs {rhs.dtype}: one primitive multiplies one dtype.")
    if contract.certified and lhs.dtype == jnp.complex128:
        raise TypeError(f"contract={contract}: a certified complex product is a real product of the parts.")
    groups = _dimensions.groups(dimension_numbers, lhs.ndim, rhs.ndim)
    extents = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    contract.modulus_count(extents.k, lhs.dtype)
    if 0 not in extents:
        contract_blocks(contract, *extents, dtype=lhs.dtype, budget=workspace_bytes)


ozaki_dot_general_p.def_effectful_abstract_eval(abstract_eval)


# Derivatives: the product is bilinear, and its transposes are products.


def transpose_lhs(cotangent: Array, lhs: Any, rhs: Array, *, multiply: Any = bind, **params: Any) -> Array:
    """The cotangent of a linear lhs; ``multiply(cotangent, rhs, ...)`` is its product."""
    labels = _dimensions.labelled(params["dimension_numbers"], lhs.aval.ndim, np.ndim(rhs))
    return _product_onto(lhs.aval, labels.lhs, (cotangent, labels.out), (rhs, labels.rhs), params, multiply)


def transpose_rhs(cotangent: Array, lhs: Array, rhs: Any, *, multiply: Any = bind, **params: Any) -> Array:
    """The cotangent of a linear rhs; ``multiply(lhs, cotangent, ...)`` is its product."""
    labels = _dimensions.labelled(params["dimension_numbers"], np.ndim(lhs), rhs.aval.ndim)
    return _product_onto(rhs.aval, labels.rhs, (lhs, labels.lhs), (cotangent, labels.out), params, multiply)


def _product_onto(
    aval: Any,
    wanted: _dimensions.Labels,
    left: tuple[Array, _dimensions.Labels],
    right: tuple[Array, _dimensions.Labels],
    params: dict[str, Any],
    multiply: Any,
) -> Array:
    """The product of two labelled arrays with the axes ``wanted`` and the sharding of ``aval``."""
    dimension_numbers, result = _dimensions.numbers(left[1], right[1], wanted)
    of_axis = dict(zip(wanted, aval.sharding.spec, strict=True))
    sharding = aval.sharding.update(spec=PartitionSpec(*(of_axis[axis] for axis in result)))
    product = multiply(
        left[0],
        right[0],
        dimension_numbers=dimension_numbers,
        contract=params["contract"],
        workspace_bytes=params["workspace_bytes"],
        out_sharding=None if sharding.mesh.empty else sharding,
    )
    return lax.transpose(product, tuple(map(result.index, wanted)))


ad.defbilinear(ozaki_dot_general_p, transpose_lhs, transpose_rhs)


# Batching: two mapped operands share a batch axis; one mapped operand has one more free axis, so the
# other is never broadcast.


def _batch(
    axis_data: Any,
    operands: tuple[Any, Any],
    axes: tuple[int | None, int | None],
    *,
    dimension_numbers: DimensionNumbers,
    out_sharding: Any,
    **params: Any,
) -> tuple[Array, int | None]:
    if tuple(axes) == (None, None):
        return bind(*operands, dimension_numbers=dimension_numbers, out_sharding=out_sharding, **params), None
    dimension_numbers, axis = _dimensions.batched(dimension_numbers, [np.ndim(x) for x in operands], axes)
    if out_sharding is not None:
        out_sharding = mapped_sharding(axis_data, out_sharding, axis)
    return bind(*operands, dimension_numbers=dimension_numbers, out_sharding=out_sharding, **params), axis


batching.fancy_primitive_batchers[ozaki_dot_general_p] = _batch


# Lowering.


def ordered(shapes: tuple[tuple[int, ...], ...], groups: tuple[Groups, Groups]) -> tuple[Groups, Groups]:
    """``groups`` with several contracted axes in the order that transposes fewer elements; it is free.

    The order decides which k are neighbours, so it is that of whole operands, whatever shards a device has.
    """

    def by(of_operand: Groups) -> tuple[Groups, Groups]:
        order = sorted(range(len(of_operand.contract)), key=of_operand.contract.__getitem__)
        return tuple(x._replace(contract=tuple(x.contract[i] for i in order)) for x in groups)  # type: ignore[return-value]

    def copied(groups: tuple[Groups, Groups]) -> int:
        operands = zip(shapes, groups, strict=True)
        return sum(math.prod(shape) for shape, of_x in operands if memory_order(shape, of_x) is None)

    return min(map(by, groups), key=copied)


def result_shape(lhs: tuple[int, ...], rhs: tuple[int, ...], groups: tuple[Groups, Groups]) -> tuple[int, ...]:
    return (*(lhs[axis] for axis in groups[0].batch + groups[0].free), *(rhs[axis] for axis in groups[1].free))


def staged(
    lhs: Array,
    rhs: Array,
    *,
    stages: _stages.Stages,
    groups: tuple[Groups, Groups],
    contract: Contract,
    workspace_bytes: int,
    shards: _shards.Shards | None = None,
    same: bool = False,
) -> Array:
    """The product as stages: what the primitive lowers to. ``shards`` says that k is split over a mesh, ``same`` that
    lhs and rhs are one array."""
    shape = result_shape(lhs.shape, rhs.shape, groups)
    extents = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    if 0 in extents:
        return jnp.zeros(shape, lhs.dtype)
    operands = views(lhs, groups) if same else (view(lhs, groups[0]), view(rhs, groups[1]))
    if shards and contract.reproducible:
        k = extents.k * shards.count
        planes = contract.workspace_planes(k, lhs.dtype)
        block = blocks(planes, *extents, budget=workspace_bytes, sums=contract.magnitude_sums)
        if contract.certified:
            return _ladder_shards.product(stages, *operands, contract, block, shards, shape)
        moduli = contract.modulus_count(k, lhs.dtype)
        return _shards.product(stages, *operands, moduli, block, workspace_bytes, shards, shape)
    rows, columns = map(_stages.Rows, operands)
    result = lax.reshape(product(stages, rows, columns, contract, workspace_bytes), shape)
    return shards.sum(result) if shards else result


def product(
    stages: _stages.Stages, lhs: _stages.Rows, rhs: _stages.Rows, contract: Contract, workspace_bytes: int
) -> Array:
    """The product of rows and columns under ``contract``: [batch, m, n] of the operands' dtype."""
    k, dtype = lhs.operand.k, lhs.operand.field.dtype
    extents = lhs.operand.batch, lhs.operand.rows, rhs.operand.rows, k
    block = contract_blocks(contract, *extents, dtype=dtype, budget=workspace_bytes)
    if contract.certified:
        return _ladder.product(stages, lhs, rhs, contract, block, workspace_bytes)
    return _stages.product(stages, lhs, rhs, contract.modulus_count(k, dtype), block, workspace_bytes)


def _lower(
    ctx: Any,
    lhs: Any,
    rhs: Any,
    *,
    stages: _stages.Stages,
    dimension_numbers: DimensionNumbers,
    contract: Contract,
    workspace_bytes: int,
    out_sharding: Any,
) -> Any:
    del out_sharding  # in the result's aval
    groups = _dimensions.groups(dimension_numbers, *(aval.ndim for aval in ctx.avals_in))
    untransposed = [_untransposed(*x) for x in zip((lhs, rhs), ctx.avals_in, groups, strict=True)]
    values, avals, groups = zip(*untransposed, strict=True)
    groups = ordered(tuple(aval.shape for aval in avals), groups)
    multiply = partial(
        staged,
        stages=stages,
        groups=groups,
        contract=contract,
        workspace_bytes=workspace_bytes,
        same=values[0] == values[1],
    )
    k = math.prod(avals[0].shape[axis] for axis in groups[0].contract)
    unit = _unit_of_k(contract, k, avals[0].dtype)
    partition = partial(partitioned_product, groups=groups, unit=unit)
    (result,) = lower_stages(multiply, partition, ctx.replace(avals_in=avals), *values)
    return [annotate_sharding(ctx, result, ctx.avals_out[0])]


def _unit_of_k(contract: Contract, k: int, dtype: Any) -> int:
    """The consecutive k that belong together where a contraction of length k is split over a mesh."""
    if not contract.reproducible:
        return 1
    chunk = _field.of(dtype).chunk
    if contract.kind != "componentwise":
        return chunk
    steps = (_rungs.plane_step(k, planes) for planes in (_rungs.COARSE_PLANES, _rungs.FINE_PLANES))
    return math.lcm(chunk, *(_rungs.PLANE_BLOCK * step for step in steps))


def lower_stages(fn: Any, partition: Any, ctx: Any, *values: Any, multiple_results: bool = False) -> Any:
    """Lower ``fn``, stages, with the rule that ``partition(fn, whole_mesh=...)`` gives it."""
    # The stages see plain arrays: no shardings, which belong to the whole product.
    ctx = ctx.replace(avals_in=[jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in])
    # Statistics are int64, whatever the flag says outside the trace that made the operands. Products within the
    # stages are their own.
    with package_flags(), _switch.context(None), partitioning(ctx.module_context) as whole_mesh:
        fn = partition(fn, whole_mesh=whole_mesh) if knows_mesh(ctx) else of_plain_arrays(fn)
        return mlir.lower_fun(fn, multiple_results=multiple_results)(ctx, *values)


def _untransposed(value: Any, aval: Any, groups: Groups) -> tuple[Any, Any, Groups]:
    """The array behind transposes, so that ``dot(a.T, b)`` reads ``a`` as it lies."""
    while (source := transpose_source(value)) is not None:
        value, permutation = source
        shape = [0] * aval.ndim
        for axis, size in zip(permutation, aval.shape, strict=True):
            shape[axis] = size
        aval, groups = jax.core.ShapedArray(tuple(shape), aval.dtype), groups.permuted(permutation)
    return value, aval, groups


def lower(primitive: Primitive, rule: Any) -> None:
    """Lower ``primitive`` by ``rule(..., stages=...)`` with the stages that each platform has."""
    rules = {platform: partial(rule, stages=stages) for platform, stages in _stages.by_platform().items()}
    register_lowering(primitive, rules)


lower(ozaki_dot_general_p, _lower)
allow_partitioning(ozaki_dot_general_p)
