"""A contraction split over the devices of a mesh, every device holding its part of k.

The scales are agreed by the integer statistics of whole rows, every device multiplies its own part exactly, the exact
X are added up over the mesh, and the sum is rounded once: the bits of the whole product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array, lax

from . import _limbs, _moduli, _reference, _stages
from ._dimensions import Groups
from ._field import REAL, Field
from ._moduli import Fewer
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

    def of_blocks(self, lhs: Operand, rhs: Operand, blocks: Blocks) -> Shards:
        """The same, for the blocks of a product: only one that is the whole can be scattered."""
        in_one_piece = blocks == Blocks(lhs.batch, lhs.rows, rhs.rows, lhs.k)
        return self if in_one_piece else replace(self, scattered=())

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

    def whole(self, x: Array, shape: tuple[int, ...], fill: int) -> Array:
        """The part of this shard in its place, and ``fill`` around it."""
        if not self.scattered:
            return x
        starts = [jnp.int32(0)] * len(shape)
        for axis, names in self.scattered:
            starts[axis] = lax.axis_index(names) * x.shape[axis]
        return lax.dynamic_update_slice(jnp.full(shape, fill, x.dtype), x, starts)

    def any(self, flags: Array) -> Array:
        """Where any shard's flag is set."""
        return lax.pmax(flags.astype(jnp.int32), self.axes) != 0


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
    of_shards = StagesOfShards(stages, shards.of_blocks(lhs, rhs, blocks), shape)
    c = _stages.product(of_shards, _stages.Rows(lhs), _stages.Rows(rhs), moduli, blocks, budget)
    return finished(c, of_shards.shards, shards, shape)


def finished(c: Array, of_blocks: Shards, shards: Shards, shape: tuple[int, ...]) -> Array:
    """This shard's part of the result from what the blocks' own shards keep of it."""
    return c if of_blocks.scattered else shards.part(lax.reshape(c, shape))


class StagesOfShards:
    """The stages of a platform for rows of which every device holds a part."""

    def __init__(self, stages: _stages.ProductStages, shards: Shards, shape: tuple[int, ...]) -> None:
        self._stages, self.shards, self._shape = stages, shards, shape

    def stats(self, operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array]:
        """Scales and statistics of whole rows.

        A chunk's sums are rounded up to the exponent of its row, so chunks are joined only once that exponent is
        known.
        """
        chunks = _chunk_statistics(self._stages, _whole_chunks(operand, self.shards), moduli)
        emax, lsb, sumsq, nnz, flags, sumabs, _, _ = jnp.moveaxis(chunks, -1, 0)
        empty = nnz == 0
        none = 2**31
        largest = jnp.stack([jnp.where(empty, -none, emax), jnp.where(empty, -none, -lsb), flags & 1, flags & 2])
        chunk, count = operand.field.chunk, -(-operand.k * self.shards.count // operand.field.chunk)
        first = -(-lax.axis_index(self.shards.axes) * operand.k // chunk)
        occupied = jnp.moveaxis(_reference.parts_occupied(~empty, first, count), -1, 0)
        largest = jnp.concatenate([largest.max(-1), occupied.astype(jnp.int64)])
        row_emax, row_lsb, nan, inf, *occupied = lax.pmax(largest, self.shards.axes)
        distance = jnp.where(empty, 0, row_emax[..., None] - emax)
        joined = [
            lax.bitcast_convert_type(
                _reference.ceil_shift_right(lax.bitcast_convert_type(x, jnp.uint64), power * distance), jnp.int64
            )
            for x, power in ((sumsq, 2), (sumabs, 1))
        ]
        row_sumsq, row_sumabs, row_nnz = lax.psum(jnp.stack([*joined, nnz]).sum(-1), self.shards.axes)
        row_emax, row_lsb = jnp.where(row_nnz > 0, jnp.stack([row_emax, -row_lsb]), 0)
        table = jnp.stack([row_emax, row_lsb, row_sumsq, row_nnz, nan | inf, row_sumabs], axis=-1)
        occupancy = _reference.word_of(jnp.stack(occupied, axis=-1) != 0)

        def rounded(scale: Array) -> Array:
            return lax.psum(_reference.count_rounded(operand, scale), self.shards.axes)

        return _reference.row_scales(table, occupancy, moduli, fewer, rounded, operand.field)

    def quantize(self, operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array, Array]:
        scale, table = self.stats(operand, moduli, fewer)
        return self._stages.residues(operand, scale, moduli), scale, table

    def residues(self, operand: Operand, scale: Array, moduli: int) -> Array:
        return self._stages.residues(operand, scale, moduli)

    def grouped_mma(self, lhs: Array, rhs: Array, *, field: Field = REAL, summand: bool = False) -> Array:
        del summand  # always residues
        return self._stages.grouped_mma(lhs, rhs, field=field, summand=True)

    def combine(self, v: Array, lhs_scale: Array, rhs_scale: Array, lhs: Operand, rhs: Operand, moduli: int) -> Array:
        """This shard's part of the sum of all shards' X, rounded."""
        crt, count = _moduli.crt(moduli, lhs.field.moduli), self.shards.count
        special = (lhs_scale <= _reference.SCALE_INF)[..., :, None] | (rhs_scale <= _reference.SCALE_INF)[..., None, :]
        exponent = -(lhs_scale[..., :, None].astype(jnp.int64) + rhs_scale[..., None, :].astype(jnp.int64))
        part_special, part_exponent = self.part(special), self.part(exponent)
        parts = []
        for i, residues in enumerate(_reference.part_residues(v, moduli, rhs)):
            first, *others = _limbs.split(_reference.reconstruct(residues, moduli, lhs.field), crt, count)
            first = jnp.where(special, _class_counts(special, lhs, rhs, i), first)
            limbs = [self.sum(x) for x in (first, *(jnp.where(special, 0, limb) for limb in others))]
            c = _reference.round_to_float64(*_limbs.join(limbs, crt, count), part_exponent)
            parts.append(jnp.where(part_special, _counted_class(limbs[0]), c))
        return lhs.field.joined(parts)

    def sum(self, x: Array) -> Array:
        """The part of the sum of all shards' x, [batch, m, n], that this one keeps."""
        return self.shards.sum(self._outputs(x))

    def part(self, x: Array) -> Array:
        """The part of x, [batch, m, n], that this shard keeps."""
        return self.shards.part(self._outputs(x))

    def whole(self, part: Array, batch: int, m: int, n: int, fill: int = 0) -> Array:
        """What this shard keeps of the outputs as [batch, m, n], ``fill`` where it keeps none."""
        return lax.reshape(self.shards.whole(part, self._shape, fill), (batch, m, n))

    def _outputs(self, x: Array) -> Array:
        return lax.reshape(x, self._shape) if self.shards.scattered else x


def aligned(operand: Operand, shards: Shards, unit: int) -> Operand:
    """The shard with zeros around it, so that it begins at a multiple of ``unit`` in k."""
    size, axis = operand.k, operand.order.index("k")
    if size % unit == 0:
        return operand
    shape = list(operand.array.shape)
    shape[axis] += unit - 1
    start = lax.axis_index(shards.axes) * size % unit
    array = lax.dynamic_update_slice_in_dim(jnp.zeros(shape, operand.array.dtype), operand.array, start, axis)
    return Operand(array, operand.order)


def _whole_chunks(operand: Operand, shards: Shards) -> Operand:
    """The chunks of k that begin in this shard; the last one's end lies in the next. The shards divide one k."""
    chunk, size, axis = operand.field.chunk, operand.k, operand.order.index("k")
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
    """Statistics int64[batch, rows, chunks, 8] of the chunks of every row, seen as rows of their own."""
    chunks = operand.k // operand.field.chunk
    sizes = {"b": operand.batch, "r": operand.rows, "c": chunks, "k": operand.field.chunk}
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


def _class_counts(special: Array, lhs: Operand, rhs: Operand, part: int) -> Array:
    """For a part of the outputs, 1 for a NaN, 2^20 for +Inf, 2^40 for -Inf among the products of this shard; 0 where
    all are finite."""

    def classified() -> Array:
        c = _reference.classify(lhs.parts(), _reference.part_columns(rhs)[part])
        infinite = jnp.where(c > 0, 1 << _CLASS_BITS, 1 << 2 * _CLASS_BITS)
        return jnp.where(jnp.isnan(c), 1, jnp.where(jnp.isinf(c), infinite, 0))

    return lax.cond(special.any(), classified, lambda: jnp.zeros(special.shape, jnp.int64))


def _counted_class(counts: Array) -> Array:
    def found(place: int) -> Array:
        return (counts >> place * _CLASS_BITS) & ((1 << _CLASS_BITS) - 1) != 0

    nan, positive, negative = map(found, range(3))
    return jnp.where(nan | (positive == negative), jnp.nan, jnp.where(positive, jnp.inf, -jnp.inf))
