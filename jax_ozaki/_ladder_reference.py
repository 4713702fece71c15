"""The stages of certified products, in pure JAX: the definition of every rung, its decision and its result.

As in ``_reference``, each has the signature and the result of the FFI handler of its name. What belongs to
tiles that are not flagged may hold anything, so work that no tile needs is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _modulus_counts, _reference, _rungs, _wide
from ._chain_reference import chain_sum
from ._moduli import Fewer
from ._operand import Operand
from ._plan import padded, padded_k
from ._reference import combine, grouped_mma, quantize, residues, stats
from ._rungs import Certified, RungMap, RungModuli, RungNeeds

__all__ = [
    "certify", "certify_fine", "combine", "grouped_mma", "ladder_combine", "ladder_mma", "ladder_quantize",
    "ladder_residues", "ladder_sum", "magnitude", "planes", "quantize", "residues", "stats",
]  # fmt: skip

_f32, _i32, _i64, _u8, _u32, _u64 = jnp.float32, jnp.int32, jnp.int64, jnp.uint8, jnp.uint32, jnp.uint64


def _where_needed(tiles: Array, rungs: int, compute: Callable[[], Array]) -> Array:
    """``compute()`` if any tile is flagged, else zeros."""
    shape = jax.eval_shape(compute)
    return lax.cond(((tiles & _u32(rungs)) != 0).any(), compute, lambda: jnp.zeros(shape.shape, shape.dtype))


def _tail(n: int, axes: int) -> list[tuple[int, int]]:
    return [(0, 0)] * (axes - 1) + [(0, padded(n) - n)]


def ladder_quantize(
    operand: Operand, moduli: int, fewer: Fewer | None, *, step: int
) -> tuple[Array, Array, Array, Array]:
    """Residues, scales, statistics and coarse magnitudes."""
    x, scale, table = quantize(operand, moduli, fewer)
    everywhere = jnp.ones((1, 1, 1), _u32)
    return x, scale, table, planes(operand, table, everywhere, side=0, planes=1, step=step, rungs=1)


# Magnitudes: S_lo <= |A||B|.


def planes(operand: Operand, table: Array, tiles: Array, *, side: int, planes: int, step: int, rungs: int) -> Array:
    """floor(|a| 2^(bits - exponent)) over the kept part of k: uint8[batch, planes, rows, padded kept k].

    One plane of 8 bits, larger ones cut off; or of 14 bits those above, those below and 1 for a nonzero, in the order
    in which the two sides (0 lhs, 1 rhs) multiply: high high, high low, low high, mask mask.
    """

    def compute() -> Array:
        blocks = -(-operand.k // _rungs.PLANE_BLOCK)
        x = operand.canonical()
        whole = jnp.pad(x, [(0, 0), (0, 0), (0, blocks * _rungs.PLANE_BLOCK - operand.k)])
        kept = whole.reshape(*x.shape[:2], blocks, _rungs.PLANE_BLOCK)[:, :, ::step]
        x = kept.reshape(*x.shape[:2], -1)[..., : _rungs.kept(operand.k, step)]
        _, significand, exponent, _ = _reference.decompose(x)
        significand = jnp.where((table[..., 4] != 0)[..., None], 0, significand)
        bits = _rungs.COARSE_BITS if planes == _rungs.COARSE_PLANES else _rungs.FINE_BITS
        magnitude = _reference.shift_left(significand, exponent + bits - _plane_exponent(table, bits)[..., None])
        if planes == _rungs.COARSE_PLANES:
            stack = [jnp.minimum(magnitude, 255)]
        else:
            high, low = magnitude >> 7, magnitude & 127
            stack = [high, *((high, low) if side == 0 else (low, high)), (significand > 0).astype(_u64)]
        tail = padded_k(x.shape[-1]) - x.shape[-1]
        return jnp.pad(jnp.stack(stack, axis=1).astype(_u8), [(0, 0), (0, 0), (0, 0), (0, tail)])

    return _where_needed(tiles, rungs, compute)


def _plane_exponent(table: Array, bits: int) -> Array:
    """What the magnitudes of a row are relative to: its largest element, or not far above the mean of its nonzeros."""
    emax, nnz, sumabs = table[..., 0], table[..., 3], table[..., 5]
    if bits != _rungs.COARSE_BITS:
        return emax
    mean = _reference.bit_length((sumabs // jnp.maximum(nnz, 1)).astype(_u64)) - 16
    return emax + jnp.where(nnz > 0, jnp.minimum(mean + 4, 0), 0)


def magnitude(lhs: Array, rhs: Array, tiles: Array, *, rungs: int) -> Array:
    """The products of planes: int32[batch, planes, m, padded n]."""

    def compute() -> Array:
        sums = lax.dot_general(lhs.astype(_i32), rhs.astype(_i32), (((3,), (3,)), ((0, 1), (0, 1))))
        return jnp.pad(sums, _tail(rhs.shape[2], 4))

    return _where_needed(tiles, rungs, compute)


# Certificates. All is float32 whose products are exact but for one, so that no contraction of operations
# changes a decision; see ffi/common/certificate.h for the bound.


def _power_of_two(exponent: Array) -> Array:
    return lax.bitcast_convert_type(((jnp.clip(exponent, -126, 127) + 127) << 23).astype(_i32), _f32)


def _row_bound(rows: Certified, plane_bits: int) -> tuple[Array, Array, Array, Array]:
    """(half norm, half of the largest, unit, rounded) of every row."""
    scale = rows.scale.astype(_i64)
    emax, lsb, _, nnz, _, sumabs, rounded, _ = jnp.moveaxis(rows.statistics, -1, 0)
    special = rows.scale <= _reference.SCALE_INF
    exponent = jnp.where(special, 0, emax + scale)
    dropped = jnp.maximum(_reference.bit_length(sumabs.astype(_u64)) - 24, 0)
    total = -(-sumabs >> dropped) << dropped  # 24 bits, rounded up
    half_norm = total.astype(_f32) * _power_of_two(exponent - 17) + nnz.astype(_f32) * _f32(0.125)
    half_largest = jnp.where(special, 0, _power_of_two(exponent - 1) + _f32(0.125))
    above = _plane_exponent(rows.statistics, plane_bits) + scale
    unit = jnp.where(special, 1, _power_of_two(above - plane_bits - 26))
    rounded = jnp.where(special | (scale >= -lsb), 0, rounded).astype(_f32)
    return jnp.where(special, 0, half_norm), half_largest, unit, rounded


def occupancy(rows: Certified) -> Array:
    """uint64[batch, rows]"""
    return lax.bitcast_convert_type(rows.statistics[..., 7], _u64)


class OutputBounds(NamedTuple):
    """What rows and columns say about every output, each to be broadcast to [batch, m, n]. Only parts of k count in which
    both hold nonzeros."""

    error: Array
    """E >= |X - AB 2^(mu + nu)|, 0 where the output is classified"""
    unit_row: Array
    unit_column: Array
    """Units of magnitudes, whose product is 2 u 2^(mu + nu) in those of |A||B|."""


def output_bounds(lhs: Certified, rhs: Certified, plane_bits: int, k: int) -> OutputBounds:
    row_norm, row_largest, row_unit, row_rounded = (x[..., :, None] for x in _row_bound(lhs, plane_bits))
    column_norm, column_largest, column_unit, column_rounded = (x[..., None, :] for x in _row_bound(rhs, plane_bits))
    shared = occupancy(lhs)[..., :, None] & occupancy(rhs)[..., None, :]
    overlap = lax.population_count(shared).astype(_f32) * _f32(_reference.part_length(k))
    of_row = jnp.minimum(jnp.minimum(row_rounded, overlap) * column_largest, column_norm)
    error = of_row + jnp.minimum(jnp.minimum(column_rounded, overlap) * row_largest, row_norm)
    return OutputBounds(error, row_unit, column_unit)


def certificate(bounds: OutputBounds, magnitude: Array, tau_half: Any) -> tuple[Array, Array]:
    """Whether |X 2^-(mu + nu) - AB| <= (c - 1) u |A||B| is certain, and where it is, its factor of u |A||B|."""
    bound = magnitude.astype(_f32) * bounds.unit_row * bounds.unit_column
    holds = bounds.error <= bound * tau_half
    ratio = bounds.error / (_f32(0.5) * jnp.where(bound == 0, 1, bound))
    return holds, jnp.where(holds & (bounds.error != 0), ratio, 0)


def fine_magnitude(sums: Array) -> Array:
    """S_lo from the products of fine planes: int64[batch, m, n]."""
    high, high_low, low_high = (sums[:, i].astype(_i64) for i in range(3))
    return (high << 14) + ((high_low + low_high) << 7)


def fine_rung(
    magnitude: Array, zero: Array, narrow: OutputBounds, wide: OutputBounds, tau_half: Any
) -> tuple[Array, Array]:
    """The rung of outputs that the coarse planes leave undecided, and their ratio; ``zero`` where |A||B| = 0."""
    holds, ratio = certificate(narrow, magnitude, tau_half)
    wide_holds, wide_ratio = certificate(wide, magnitude, tau_half)
    rung = jnp.where(zero | holds, _rungs.FINE, jnp.where(wide_holds, _rungs.WIDE, _rungs.SUM)).astype(_u8)
    return rung, jnp.where(zero, 0, jnp.where(holds, ratio, wide_ratio))


def _tiles(x: Array, reduce: Callable[[Array], Array]) -> Array:
    """Reduces [batch, m, n] to one value a tile."""
    batch, m, n = x.shape
    shape = (batch, _rungs.tiles(m), _rungs.TILE, _rungs.tiles(n), _rungs.TILE)
    tails = [(0, 0), (0, shape[1] * _rungs.TILE - m), (0, shape[3] * _rungs.TILE - n)]
    tiled = jnp.moveaxis(jnp.pad(x, tails).reshape(shape), 2, 3)
    return reduce(tiled.reshape(*tiled.shape[:3], -1))


def rung_map(rung: Array, ratio: Array | None = None) -> RungMap:
    """The map of ``rung``, uint8[batch, m, n], whose tiles skip nothing; without ``ratio`` nothing was certified."""
    sets = _tiles(_u32(1) << rung.astype(_u32), lambda tile: lax.reduce_or(tile, (3,)))
    worst = jnp.zeros(sets.shape, jnp.float32) if ratio is None else _tiles(ratio, lambda tile: tile.max(-1))
    return RungMap(jnp.pad(rung, _tail(rung.shape[2], 3)), sets, worst)


def skips(lhs: Certified, rhs: Certified) -> Array:
    """What every tile skips, as words without rungs: the parts of k before and after all those that any of its rows
    shares with any of its columns. One part is left of none."""

    def of_tiles(rows: Certified) -> Array:
        words = occupancy(rows)
        tail = -words.shape[1] % _rungs.TILE
        return lax.reduce_or(jnp.pad(words, [(0, 0), (0, tail)]).reshape(len(words), -1, _rungs.TILE), (2,))

    shared = of_tiles(lhs)[:, :, None] & of_tiles(rhs)[:, None, :]
    last = _reference.OCCUPANCY_PARTS - 1
    before = jnp.where(shared == 0, 0, last - lax.clz(shared & (~shared + 1))).astype(_u32)
    after = jnp.where(shared == 0, last, lax.clz(shared)).astype(_u32)
    return before << _rungs.SKIPPED_BEFORE | after << _rungs.SKIPPED_AFTER


def certify(
    sums: Array, lhs: Certified, rhs: Certified, moduli: RungModuli, *, k: int, tau_half: np.float32
) -> tuple[RungMap, RungNeeds]:
    """Rung 1 where coarse magnitudes certify an output, rung 0 elsewhere; and what the rungs need of their moduli."""
    bounds = output_bounds(lhs, rhs, _rungs.COARSE_BITS, k)
    holds, ratio = certificate(bounds, sums[:, 0, :, : rhs.scale.shape[1]], tau_half)
    found = rung_map(holds.astype(_u8) * _u8(_rungs.COARSE), ratio)
    wide_lhs, wide_rhs = (x._replace(scale=_modulus_counts.scale(x, moduli.wide)) for x in (lhs, rhs))
    first = _modulus_counts.modulus_counts(lhs, rhs, moduli.first, moduli.fewer).max()[None]
    wide = _modulus_counts.modulus_counts(wide_lhs, wide_rhs, moduli.wide, moduli.wide).max()[None]
    needs = RungNeeds(first, wide, wide_lhs.scale, wide_rhs.scale)
    return found._replace(tiles=found.tiles | skips(lhs, rhs)), needs


def certify_fine(
    sums: Array,
    known: RungMap,
    lhs: Certified,
    rhs: Certified,
    needs: RungNeeds,
    *,
    k: int,
    all_k: bool,
    tau_half: np.float32,
) -> RungMap:
    """Rung 2 where fine magnitudes certify an undecided output or no product of it is nonzero, 3 where they do with
    the scales of more moduli, else 4."""
    n = rhs.scale.shape[1]
    sums = sums[..., :n]
    zero = (sums[:, 3] == 0) if all_k else jnp.zeros((), bool)
    narrow = output_bounds(lhs, rhs, _rungs.FINE_BITS, k)
    wide_lhs, wide_rhs = lhs._replace(scale=needs.lhs_wide), rhs._replace(scale=needs.rhs_wide)
    wide = output_bounds(wide_lhs, wide_rhs, _rungs.FINE_BITS, k)
    found, ratio = fine_rung(fine_magnitude(sums), zero, narrow, wide, tau_half)
    undecided = known.rung[..., :n] == _rungs.UNDECIDED
    decided = rung_map(jnp.where(undecided, found, known.rung[..., :n]), jnp.where(undecided, ratio, 0))
    return decided._replace(tiles=decided.tiles | (known.tiles - _rungs.sets(known.tiles)))


# The first three rungs. X from the first `count` moduli is X from all of them, which are multiplied here.


def ladder_residues(
    operand: Operand, scale: Array, moduli: int, count: Array, tiles: Array, *, side: int, rungs: int
) -> Array:
    """As ``residues``; those of the first ``count`` moduli are needed."""
    del count, side
    return _where_needed(tiles, rungs, lambda: residues(operand, scale, moduli))


def ladder_mma(lhs: Array, rhs: Array, count: Array, tiles: Array, *, rungs: int) -> Array:
    """As ``grouped_mma``, of ``count`` moduli."""
    del count
    return _where_needed(tiles, rungs, lambda: grouped_mma(lhs, rhs))


def ladder_combine(
    v: Array,
    lhs_scale: Array,
    rhs_scale: Array,
    lhs: Operand,
    rhs: Operand,
    count: Array,
    rung: Array,
    tiles: Array,
    c: Array | None,
    *,
    rungs: int,
) -> Array:
    """As ``combine``, for the outputs of ``rungs``; the others are those of ``c``, if there is one."""
    del count
    value = _where_needed(tiles, rungs, lambda: combine(v, lhs_scale, rhs_scale, lhs, rhs, v.shape[1]))
    return _select(value, c, rung, rungs)


def _select(value: Array, c: Array | None, rung: Array, rungs: int) -> Array:
    chosen = (_u8(1) << rung[..., : value.shape[2]]) & _u8(rungs) != 0
    return jnp.where(chosen, value, jnp.zeros_like(value) if c is None else c)


# The last rung. Integer sums are in units of 2^(T - 94), T the largest sum of the exponents
# of a product's factors; see ffi/common/accumulate.h.

_WINDOW = 94
_LOWEST, _DIGITS = -2272, 138


def ladder_sum(
    lhs: Operand,
    rhs: Operand,
    lhs_table: Array,
    rhs_table: Array,
    rung: Array,
    tiles: Array,
    c: Array,
    *,
    rungs: int,
    exact: bool,
    group: int,
) -> Array:
    """AB correctly rounded, if ``exact``. Else the float64 sums of ``_chains``, in groups of ``group`` chains, and where
    those are not taken, or ``group`` is 0, AB to within k 2^-92 |A||B|, rounded. The statistics tell where in k there is
    nothing to add."""
    del lhs_table, rhs_table
    chosen = (_u8(1) << rung[..., : rhs.rows]) & _u8(rungs) != 0

    def integers() -> Array:
        a, b = (_wide.normalise(x.canonical()) for x in (lhs, rhs))

        def pair(h: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            """Element h of every row and of every column, along the axes of the result."""
            at = [[lax.dynamic_index_in_dim(x, h, 2, keepdims=False) for x in side] for side in (a, b)]
            return tuple(x[:, :, None] for x in at[0]), tuple(x[:, None, :] for x in at[1])

        def top(h: Array, largest: Array) -> Array:
            (_, _, e), (_, _, f) = pair(h)
            return jnp.maximum(largest, e + f)

        def add(h: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            (s, x, e), (t, y, f) = pair(h)
            some = e + f > _wide.NONE // 2
            term, lost = _wide.shift_right(_wide.multiply(x, y), jnp.where(some, 106 - _WINDOW + largest - e - f, 128))
            high, low = _wide.add(carry[:2], _wide.negate_where(s != t, term))
            return high, low, carry[2] | (lost & some)

        shape = (lhs.batch, lhs.rows, rhs.rows)
        largest = lax.fori_loop(0, lhs.k, top, jnp.full(shape, 2 * _wide.NONE, _i64))
        zero = jnp.zeros(shape, _u64)
        high, low, cut = lax.fori_loop(0, lhs.k, add, (zero, zero, jnp.zeros(shape, bool)))
        largest = jnp.where(largest > _wide.NONE // 2, largest, 0)

        def rounded(units: int) -> Array:
            shift = (_u64((units >> 64) & 0xFFFFFFFFFFFFFFFF), _u64(units & 0xFFFFFFFFFFFFFFFF))
            total = _wide.add((high, low), shift)
            negative = total[0] >> 63 == 1
            up, down = _wide.negate_where(negative, total)
            limbs = [down & 0xFFFFFFFF, down >> 32, up & 0xFFFFFFFF, up >> 32]
            return _reference.round_to_float64(negative, limbs, largest - _WINDOW)

        if not exact:
            return rounded(0)
        below, above = (lax.bitcast_convert_type(rounded(units), _u64) for units in (-lhs.k, lhs.k))
        unsettled = chosen & cut & (below != above)
        return lax.cond(
            unsettled.any(),
            lambda: jnp.where(unsettled, _superaccumulate(pair, lhs.k, shape), rounded(0)),
            lambda: rounded(0),
        )

    def compute() -> Array:
        if not group:
            return integers()
        total, taken = chain_sum(lhs, rhs, group)
        left = chosen & ~taken
        return lax.cond(left.any(), lambda: jnp.where(left, integers(), total), lambda: total)

    return _select(_where_needed(tiles, rungs, compute), c, rung, rungs)


def _superaccumulate(pair: Callable[[Array], Any], k: int, shape: tuple[int, ...]) -> Array:
    """The correctly rounded sum: every product in 32-bit digits of 2^(32 q - 2272), carried at the end."""
    where = jnp.ix_(*map(jnp.arange, shape))

    def add(h: Array, digits: Array) -> Array:
        (s, x, e), (t, y, f) = pair(h)
        lowest = jnp.where(e + f > _wide.NONE // 2, e + f - 106 - _LOWEST, 0)
        high, low = _wide.multiply(x, y)
        shift = (lowest & 31).astype(_u64)
        carried = jnp.zeros(shape, _u64)
        for i, word in enumerate((low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32, _u64(0))):
            piece = (word << shift) | carried
            carried = piece >> 32
            digit = (piece & 0xFFFFFFFF).astype(_i64)
            digits = digits.at[(*where, (lowest >> 5) + i)].add(jnp.where(s != t, -digit, digit))
        return digits

    digits = lax.fori_loop(0, k, add, jnp.zeros((*shape, _DIGITS), _i64))

    def carry(total: Array, digit: Array) -> tuple[Array, Array]:
        total = total + digit
        return total >> 32, total & 0xFFFFFFFF

    nothing = jnp.zeros(shape, _i64)
    top, digits = lax.scan(carry, nothing, jnp.moveaxis(digits, -1, 0))
    negative = top < 0
    _, digits = lax.scan(carry, nothing, jnp.where(negative, -digits, digits))
    at = jnp.where(digits != 0, jnp.arange(_DIGITS)[:, None, None, None], 3).max(0) - 3
    limbs = [jnp.take_along_axis(digits, at[None] + i, axis=0)[0].astype(_u64) for i in range(4)]
    below = ((digits != 0) & (jnp.arange(_DIGITS)[:, None, None, None] < at)).any(0)
    limbs[0] |= below.astype(_u64)
    return _reference.round_to_float64(negative, limbs, 32 * at + _LOWEST)
