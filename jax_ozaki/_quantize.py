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

from . import _stages
from ._compat import Primitive, batching, evaluate_eagerly
from ._dimensions import Groups
from ._operand import view
from ._plan import padded_k
from ._primitive import lower, lower_stages
from ._stages import Quantized

ozaki_statistics_p = Primitive("ozaki_statistics")
"""Scales int32[*batch, *free] and statistics int64[*batch, *free, 6]."""

ozaki_quantize_p = Primitive("ozaki_quantize")
"""Residues uint8[*batch, moduli, *free, padded k], scales and statistics."""


def statistics(x: Array, groups: Groups, moduli: int) -> tuple[Array, Array]:
    """Scales and statistics of the rows of ``x``."""
    scale, table = ozaki_statistics_p.bind(lax.stop_gradient(x), groups=groups, moduli=moduli)
    return scale, table


def quantize(x: Array, groups: Groups, moduli: int) -> Quantized:
    """The rows of ``x`` as integers."""
    return Quantized(*ozaki_quantize_p.bind(lax.stop_gradient(x), groups=groups, moduli=moduli))


def _shapes(x: Any, groups: Groups) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    batch, free = (tuple(x.shape[axis] for axis in axes) for axes in groups[:2])
    return batch, free, math.prod(x.shape[axis] for axis in groups.contract)


def _row_avals(x: Any, groups: Groups) -> list[Any]:
    batch, free, _ = _shapes(x, groups)
    return [jax.core.ShapedArray(batch + free, jnp.int32), jax.core.ShapedArray((*batch, *free, 6), jnp.int64)]


@ozaki_statistics_p.def_abstract_eval
def _statistics_avals(x: Any, *, groups: Groups, moduli: int) -> list[Any]:
    del moduli
    return _row_avals(x, groups)


@ozaki_quantize_p.def_abstract_eval
def _quantize_avals(x: Any, *, groups: Groups, moduli: int) -> list[Any]:
    batch, free, k = _shapes(x, groups)
    residues = jax.core.ShapedArray((*batch, moduli, *free, padded_k(k)), jnp.uint8)
    return [residues, *_row_avals(x, groups)]


def _lower(ctx: Any, x: Any, *, stages: _stages.Stages, stage: str, groups: Groups, moduli: int) -> Any:
    shapes = [aval.shape for aval in ctx.avals_out]

    def run(x: Array) -> list[Array]:
        if 0 in x.shape:
            return [jnp.zeros(aval.shape, aval.dtype) for aval in ctx.avals_out]
        return [lax.reshape(y, s) for y, s in zip(getattr(stages, stage)(view(x, groups), moduli), shapes, strict=True)]

    return lower_stages(run, ctx, x, multiple_results=True)


def _batch(operands: Any, axes: Any, *, primitive: Primitive, groups: Groups, moduli: int) -> Any:
    (x,), (mapped,) = operands, axes
    shifted = Groups(*(tuple(axis + (axis >= mapped) for axis in of_group) for of_group in groups))
    groups = shifted._replace(batch=(mapped, *shifted.batch))
    results = primitive.bind(x, groups=groups, moduli=moduli)
    return results, [0] * len(results)


for _primitive, _stage in ((ozaki_statistics_p, "stats"), (ozaki_quantize_p, "quantize")):
    _primitive.multiple_results = True
    evaluate_eagerly(_primitive)
    batching.primitive_batchers[_primitive] = partial(_batch, primitive=_primitive)
    lower(_primitive, partial(_lower, stage=_stage))
