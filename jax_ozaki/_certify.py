"""Certificates alone, as a primitive: what reports of certified products read.

Its stages are those of the product, so that in one program XLA merges the two.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from . import _dimensions, _ladder, _plan, _stages
from ._compat import Primitive, batching, evaluate_eagerly
from ._contract import Contract
from ._dimensions import DimensionNumbers, Groups
from ._operand import view
from ._partition import partitioned, product_factors
from ._primitive import lower, lower_stages, ordered

ozaki_certify_p = Primitive("ozaki_certify")
"""(lhs, rhs) -> rungs uint8[*batch, m, n]; the largest certified error before the final rounding, in u |A||B|,
float32[*batch]; the moduli that hold every X, int32[*batch]. No derivative, like every integer."""
ozaki_certify_p.multiple_results = True
evaluate_eagerly(ozaki_certify_p)


def certify(lhs: Array, rhs: Array, dimension_numbers: DimensionNumbers, contract: Contract) -> tuple[Array, ...]:
    """Which rung gives each output of the product, and how well."""
    groups = _dimensions.groups(dimension_numbers, lhs.ndim, rhs.ndim)
    operands = lax.stop_gradient(lhs), lax.stop_gradient(rhs)
    workspace_bytes = _plan.resolve_workspace()
    return tuple(ozaki_certify_p.bind(*operands, groups=groups, contract=contract, workspace_bytes=workspace_bytes))


@ozaki_certify_p.def_abstract_eval
def _avals(lhs: Any, rhs: Any, *, groups: tuple[Groups, Groups], **_: Any) -> list[Any]:
    batch = tuple(lhs.shape[axis] for axis in groups[0].batch)
    extents = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    rung = jax.core.ShapedArray((*batch, extents.m, extents.n), jnp.uint8)
    return [rung, jax.core.ShapedArray(batch, jnp.float32), jax.core.ShapedArray(batch, jnp.int32)]


def _staged(
    lhs: Array,
    rhs: Array,
    *,
    stages: _stages.Stages,
    groups: tuple[Groups, Groups],
    contract: Contract,
    workspace_bytes: int,
) -> tuple[Array, Array, Array]:
    rows, columns = (_stages.Rows(view(x, of_x)) for x, of_x in zip((lhs, rhs), groups, strict=True))
    extents = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    blocks = _plan.contract_blocks(contract, *extents, budget=workspace_bytes)
    if blocks == _plan.Blocks(*extents):
        rows, columns = (_ladder.quantize(stages, x, contract) for x in (rows, columns))

    def decide(a: _stages.Rows, b: _stages.Rows) -> tuple[Array, Array]:
        of_rows, of_columns = (_ladder.certified(stages, x, contract) for x in (a, b))
        found = _ladder.decide(stages, a.operand, b.operand, of_rows, of_columns, contract)
        rung = found.rung[..., : b.operand.rows]
        # ``exact`` has constants here, which XLA would spread over all outputs while compiling.
        worst = lax.optimization_barrier(found.worst)
        return rung, jnp.broadcast_to(worst.max((1, 2), keepdims=True), rung.shape)

    rung, worst = _stages.in_blocks(rows, columns, blocks, lambda x: x, decide, (jnp.uint8, jnp.float32))
    of_rows, of_columns = (_ladder.certified(stages, x, contract) for x in (rows, columns))
    return rung, worst.max((1, 2)), _ladder.needed_moduli(of_rows, of_columns, contract, extents.k)


def _lower(ctx: Any, lhs: Any, rhs: Any, *, groups: tuple[Groups, Groups], **params: Any) -> Any:
    groups = ordered(tuple(aval.shape for aval in ctx.avals_in), groups)

    def run(x: Array, y: Array) -> tuple[Array, ...]:
        avals = _avals(x, y, groups=groups)
        if 0 in x.shape or 0 in y.shape:
            return tuple(jnp.zeros(aval.shape, aval.dtype) for aval in avals)
        results = _staged(x, y, groups=groups, **params)
        return tuple(lax.reshape(z, aval.shape) for z, aval in zip(results, avals, strict=True))

    operands, of_rungs = product_factors(groups)
    of_batch = of_rungs[: len(groups[0].batch)]
    partition = partial(partitioned, operands=operands, results=[of_rungs, of_batch, of_batch])
    return lower_stages(run, partition, ctx, lhs, rhs, multiple_results=True)


lower(ozaki_certify_p, _lower)


def _batch(operands: Any, axes: Any, *, groups: tuple[Groups, Groups], **params: Any) -> Any:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)

    def to_front(x: Array, axis: int | None) -> Array:
        return jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)

    def shifted(of_operand: Groups) -> Groups:
        batch, *others = (tuple(axis + 1 for axis in part) for part in of_operand)
        return Groups((0, *batch), *others)

    results = ozaki_certify_p.bind(*map(to_front, operands, axes), groups=tuple(map(shifted, groups)), **params)
    return results, [0] * len(results)


batching.primitive_batchers[ozaki_certify_p] = _batch
