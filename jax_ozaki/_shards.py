"""A contraction split over the devices of a mesh, every device holding its part of k.

The scales are agreed by the integer statistics of whole rows, every device multiplies its own part exactly, the exact
X are added up over the mesh, and the sum is rounded once: the bits of the whole product.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from . import _limbs, _moduli, _reference, _stages
from ._dimensions import Groups
from ._field import REAL, Field
from ._operand import Operand, memory_order, view
from ._plan import Blocks


@dataclass(frozen=True)
class Shards:
    """The parts of a contraction, and where their sum goes."""

    axes: tuple[str, ...]
    """Mesh axes that k is split over."""
    count: int
    scattered: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Axes of the result that end up split, each over some of ``axes``; over the others it is replicated."""

    def sum(self, x: Array) -> Array:
        """The part of the sum over all shards that this one keeps."""
        left = self.axes
        for axis, names in self.scattered:
            x = lax.psum_scatter(x, names, scatter_dimension=axis, tiled=True)
            left = tuple(name for name in left if name not in names)
        return lax.psum(x, left) if left else x

    def part(self, x: Array) -> Array:
        """The part of a whole result that this shard keeps."""
        for axis, names in self.scattered:
            size = x.shape[axis] // lax.psum(1, names)
            x = lax.dynamic_slice_in_dim(x, lax.axis_index(names) * size, size, axis)
        return x


def product(
    stages: _stages.ProductStages,
    lhs: Operand,
    rhs: Operand,
    moduli: int,
    blocks: Blocks,
    budget: int,
    shards: Shards,
    shape: tuple[int, ...],
) -> Array:
    """This shard's part of C = A B, for a shard of k of both operands; ``shape`` is that of all of C."""
    in_one_piece = blocks == Blocks(lhs.batch, lhs.rows, rhs.rows, lhs.k)
    scattered = shards.scattered if in_one_piece else ()
    stages = _StagesOfShards(stages, Shards(shards.axes, shards.count, scattered), shape)
    c = _stages.product(stages, _stages.Rows(lhs), _stages.Rows(rhs), moduli, blocks, budget)
    return c if scattered else shards.part(lax.reshape(c, shape))


class _StagesOfShards:
    """The stages of a platform for rows of which every device holds a part."""

    def __init__(self, stages: _stages.ProductStages, shards: Shards, shape: tuple[int, ...]) -> None:
        self._stages, self._shards, self._shape = stages, shards, shape

    def stats(self, operand: Operand, moduli: int) -> tuple[Array, Array]:
        """Scales and statistics of whole rows.

        A chunk's sums are rounded up to the exponent of its row, so chunks are joined only once that exponent is
        known.
        """
        chunks = _chunk_statistics(self._stages, _whole_chunks(operand, self._shards), moduli)
        emax, lsb, sumsq, nnz, flags, sumabs = jnp.moveaxis(chunks, -1, 0)
        empty = nnz == 0
        none = 2**31
        largest = jnp.stack([jnp.where(empty, -none, emax), jnp.where(empty, -none, -lsb), flags & 1, flags & 2])
        row_emax, row_lsb, nan, inf = lax.pmax(largest.max(-1), self._shards.axes)
        distance = jnp.where(empty, 0, row_emax[..., None] - emax)
        joined = [
            lax.bitcast_convert_type(
                _reference.ceil_shift_right(lax.bitcast_convert_type(x, jnp.uint64), power * distance), jnp.int64
            )
            for x, power in ((sumsq, 2), (sumabs, 1))
        ]
        row_sumsq, row_sumabs, row_nnz = lax.psum(jnp.stack([*joined, nnz]).sum(-1), self._shards.axes)
        row_emax, row_lsb = jnp.where(row_nnz > 0, jnp.stack([row_emax, -row_lsb]), 0)
        table = jnp.stack([row_emax, row_lsb, row_sumsq, row_nnz, nan | inf, row_sumabs], axis=-1)
        return _reference.scales(table, _moduli.bound(moduli)), table

    def quantize(self, operand: Operand, moduli: int) -> tuple[Array, Array, Array]:
        scale, table = self.stats(operand, moduli)
        return self._stages.residues(operand, scale, moduli), scale, table

    def residues(self, operand: Operand, scale: Array, moduli: int) -> Array:
        return self._stages.residues(operand, scale, moduli)

    def grouped_mma(self, lhs: Array, rhs: Array, *, field: Field = REAL, summand: bool = False) -> Array:
        del summand  # always residues
        return self._stages.grouped_mma(lhs, rhs, field=field, summand=True)

    def combine(self, v: Array, lhs_scale: Array, rhs_scale: Array, lhs: Operand, rhs: Operand, moduli: int) -> Array:
        count = self._shards.count
        special = (lhs_scale <= _reference.SCALE_INF)[..., :, None] | (rhs_scale <= _reference.SCALE_INF)[..., None, :]
        exponent = -(lhs_scale[..., :, None].astype(jnp.int64) + rhs_scale[..., None, :].astype(jnp.int64))
        integer = _reference.reconstruct(v[..., : rhs.rows].astype(jnp.uint64), moduli)
        first, *others = _limbs.split(*integer, moduli, count)
        first = jnp.where(special, _class_counts(special, lhs, rhs), first)
        limbs = [first, *(jnp.where(special, 0, limb) for limb in others)]

        if self._shards.scattered:
            special, exponent, *limbs = (lax.reshape(x, self._shape) for x in (special, exponent, *limbs))
        limbs = [self._shards.sum(x) for x in limbs]
        special, exponent = self._shards.part(special), self._shards.part(exponent)
        c = _reference.round_to_float64(*_limbs.join(limbs, moduli, count), exponent)
        return jnp.where(special, _counted_class(limbs[0]), c)


def _whole_chunks(operand: Operand, shards: Shards) -> Operand:
    """The chunks of k that begin in this shard; the last one's end lies in the next. The shards divide one k."""
    chunk, size, axis = _moduli.CHUNK, operand.k, operand.order.index("k")
    if size % chunk == 0:
        return operand
    assert size >= chunk
    start = lax.axis_index(shards.axes) * size
    head = lax.slice_in_dim(operand.array, 0, chunk, axis=axis)
    following = lax.ppermute(head, shards.axes, [(i, i - 1) for i in range(1, shards.count)])
    array = lax.concatenate([operand.array, following, jnp.zeros_like(head)], axis)
    array = lax.dynamic_slice_in_dim(array, -start % chunk, -(-size // chunk) * chunk, axis)
    begun = -(-(start + size) // chunk) - -(-start // chunk)
    mine = lax.broadcasted_iota(jnp.int64, array.shape, axis) < begun * chunk
    return Operand(jnp.where(mine, array, 0.0), operand.order)


def _chunk_statistics(stages: _stages.ProductStages, operand: Operand, moduli: int) -> Array:
    """Statistics int64[batch, rows, chunks, 5] of the chunks of every row, seen as rows of their own."""
    chunks = operand.k // _moduli.CHUNK
    sizes = {"b": operand.batch, "r": operand.rows, "c": chunks, "k": _moduli.CHUNK}
    order = operand.order.replace("k", "ck")
    array = lax.reshape(operand.array, tuple(sizes[axis] for axis in order))

    def groups(batch: str, free: str) -> Groups:
        return Groups(*(tuple(map(order.index, axes)) for axes in (batch, free, "k")))

    if memory_order(array.shape, groups("b", "rc")) is not None or memory_order(array.shape, groups("bc", "r")) is None:
        _, table = stages.stats(view(array, groups("b", "rc")), moduli)
        return lax.reshape(table, (operand.batch, operand.rows, chunks, table.shape[-1]))
    _, table = stages.stats(view(array, groups("bc", "r")), moduli)
    return jnp.swapaxes(lax.reshape(table, (operand.batch, chunks, operand.rows, table.shape[-1])), 1, 2)


# Outputs of rows and columns with NaN or Inf: their first limb counts what the shards found.

_CLASS_BITS = 20


def _class_counts(special: Array, lhs: Operand, rhs: Operand) -> Array:
    """1 for a NaN, 2^20 for +Inf, 2^40 for -Inf among the products of this shard; 0 where all are finite."""

    def classified() -> Array:
        c = _reference.classify(lhs.canonical(), rhs.canonical())
        infinite = jnp.where(c > 0, 1 << _CLASS_BITS, 1 << 2 * _CLASS_BITS)
        return jnp.where(jnp.isnan(c), 1, jnp.where(jnp.isinf(c), infinite, 0))

    return lax.cond(special.any(), classified, lambda: jnp.zeros(special.shape, jnp.int64))


def _counted_class(counts: Array) -> Array:
    def found(place: int) -> Array:
        return (counts >> place * _CLASS_BITS) & ((1 << _CLASS_BITS) - 1) != 0

    nan, positive, negative = map(found, range(3))
    return jnp.where(nan | (positive == negative), jnp.nan, jnp.where(positive, jnp.inf, -jnp.inf))
