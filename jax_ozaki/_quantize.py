"""Quantization as primitives of their own: what reports read and what prepared operands keep.

Results have the batch axes first. There is no derivative: integers have no tangents.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from . import _field, _stages
from ._compat import Primitive, allow_partitioning, annotate_sharding, batching, evaluate_eagerly
from ._dimensions import Groups
from ._moduli import STATISTICS, Fewer
from ._operand import view
from ._partition import Factors, partitioned
from ._plan import padded_k
from ._primitive import lower, lower_stages
from ._stages import Quantized

ozaki_statistics_p = Primitive("ozaki_statistics")
"""Scales int32[*batch, *free] and statistics int64[*batch, *free, 8]."""

ozaki_quantize_p = Primitive("ozaki_quantize")
"""Residues uint8[*batch, moduli, *free, padded k], twice the moduli where complex, scales and statistics."""


def statistics(x: Array, groups: Groups, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array]:
    """Scales and statistics of the rows of ``x``."""
    scale, table = ozaki_statistics_p.bind(lax.stop_gradient(x), groups=groups, moduli=moduli, fewer=fewer)
    return scale, table


def quantize(x: Array, groups: Groups, moduli: int, fewer: Fewer | None = None) -> Quantized:
    """The rows of ``x`` as integers."""
    return Quantized(*ozaki_quantize_p.bind(lax.stop_gradient(x), groups=groups, moduli=moduli, fewer=fewer))


def result_factors(of_array: Factors, groups: Groups) -> list[Factors]:
    """The factors of residues, scales and statistics of an array with these factors."""
    batch, free = ([of_array[axis] for axis in axes] for axes in groups[:2])
    return [[*batch, "planes", *free, "padded_k"], [*batch, *free], [*batch, *free, "fields"]]


def _results(x: Any, groups: Groups, moduli: int) -> list[Any]:
    """Residues, scales and statistics as x has them: its shardings, and varying over the same manual axes."""
    axes: list[Factors] = result_factors([str(axis) for axis in range(x.ndim)], groups)
    k = math.prod(x.shape[axis] for axis in groups.contract)
    planes = _field.of(x.dtype).parts * moduli
    sizes = {"planes": planes, "padded_k": padded_k(k), "fields": STATISTICS} | {
        str(i): n for i, n in enumerate(x.shape)
    }
    specs = {str(i): spec for i, spec in enumerate(x.sharding.spec)}

    def aval(factors: Factors, dtype: Any) -> Any:
        spec = PartitionSpec(*map(specs.get, factors))
        return x.update(
            shape=tuple(sizes[f] for f in factors),
            dtype=jnp.dtype(dtype),
            weak_type=False,
            sharding=x.sharding.update(spec=spec),
        )

    return list(map(aval, axes, (jnp.uint8, jnp.int32, jnp.int64)))


@ozaki_statistics_p.def_abstract_eval
def _statistics_avals(x: Any, *, groups: Groups, moduli: int, fewer: Fewer | None) -> list[Any]:
    return _results(x, groups, moduli)[1:]


@ozaki_quantize_p.def_abstract_eval
def _quantize_avals(x: Any, *, groups: Groups, moduli: int, fewer: Fewer | None) -> list[Any]:
    return _results(x, groups, moduli)


def _lower(
    ctx: Any, x: Any, *, stages: _stages.Stages, stage: str, groups: Groups, moduli: int, fewer: Fewer | None
) -> Any:
    def run(x: Array) -> tuple[Array, ...]:
        avals = _results(jax.core.ShapedArray(x.shape, x.dtype), groups, moduli)[-len(ctx.avals_out) :]
        if 0 in x.shape:
            return tuple(jnp.zeros(aval.shape, aval.dtype) for aval in avals)
        results = getattr(stages, stage)(view(x, groups), moduli, fewer)
        return tuple(lax.reshape(y, aval.shape) for y, aval in zip(results, avals, strict=True))

    factors = [f"axis{axis}" for axis in range(ctx.avals_in[0].ndim)]
    of_results = result_factors(factors, groups)[-len(ctx.avals_out) :]
    partition = partial(partitioned, operands=[factors], results=of_results)
    results = lower_stages(run, partition, ctx, x, multiple_results=True)
    return [annotate_sharding(ctx, y, aval) for y, aval in zip(results, ctx.avals_out, strict=True)]


def _batch(operands: Any, axes: Any, *, primitive: Primitive, groups: Groups, **parameters: Any) -> Any:
    (x,), (mapped,) = operands, axes
    shifted = Groups(*(tuple(axis + (axis >= mapped) for axis in of_group) for of_group in groups))
    groups = shifted._replace(batch=(mapped, *shifted.batch))
    results = primitive.bind(x, groups=groups, **parameters)
    return results, [0] * len(results)


for _primitive, _stage in ((ozaki_statistics_p, "stats"), (ozaki_quantize_p, "quantize")):
    _primitive.multiple_results = True
    evaluate_eagerly(_primitive)
    batching.primitive_batchers[_primitive] = partial(_batch, primitive=_primitive)
    lower(_primitive, partial(_lower, stage=_stage))
    allow_partitioning(_primitive)
