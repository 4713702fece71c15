"""The definition of a product, stage by stage, in pure JAX integer operations.

Every stage has the signature and the result of the FFI handler of the same name (see ``_stages``),
so a platform without handlers runs this, and tests compare the two bit for bit. Residues may differ
by a multiple of their modulus; scales, statistics and results may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from . import _moduli
from ._field import COMPLEX, REAL, Field
from ._moduli import Fewer
from ._operand import Operand
from ._plan import padded, padded_k

SCALE_NAN = -(2**31)
"""Scale of a row that holds a NaN."""
SCALE_INF = SCALE_NAN + 1
"""Scale of a row that holds an Inf and no NaN."""

OCCUPANCY_PARTS = 64
"""The parts of k whose nonzeros a row's occupancy tells, at most: each a power of two of chunks, as few as reach k."""

_u64 = jnp.uint64
_i64 = jnp.int64


def shift_left(x: Array, s: Array) -> Array:
    """x 2^s for uint64, floor for negative s, 0 where every bit leaves."""
    left = jnp.where(s < 64, x << jnp.clip(s, 0, 63).astype(_u64), 0)
    right = jnp.where(s > -64, x >> jnp.clip(-s, 0, 63).astype(_u64), 0)
    return jnp.where(s >= 0, left, right)


def ceil_shift_right(x: Array, s: Array) -> Array:
    """ceil(x / 2^s) for s >= 0."""
    floor = shift_left(x, -s)
    return floor + (shift_left(floor, s) != x)


def bit_length(x: Array) -> Array:
    return 64 - lax.clz(x).astype(_i64)


def decompose(x: Array) -> tuple[Array, Array, Array, Array]:
    """(negative, significand, exponent, special): |x| = significand 2^exponent where not special."""
    bits = lax.bitcast_convert_type(x, _u64)
    field = ((bits >> 52) & 0x7FF).astype(_i64)
    fraction = bits & ((1 << 52) - 1)
    special = field == 0x7FF
    significand = jnp.where(special, 0, fraction | ((field > 0).astype(_u64) << 52))
    return (bits >> 63) == 1, significand, jnp.maximum(field, 1) - 1075, special


def stats(operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array]:
    """Scales int32[batch, rows] and statistics int64[batch, rows, 8]: emax, lsb, sumsq, nnz, flags, sumabs, rounded,
    occupancy.

    Those of a complex row are the ones of the real row of its parts, real and imaginary in turn: a chunk is
    128 parts, 64 complex elements, and nnz counts nonzero parts. ``rounded`` is the number of
    elements that the scale of fewer moduli rounds where the row takes that scale, and nnz elsewhere; ``occupancy``
    is a word of 64 bits, one for every part of k that holds a nonzero.
    """
    x = operand.parts()
    k = x.shape[-1]
    _, significand, exponent, _ = decompose(x)
    nonzero = significand != 0
    top = bit_length(significand) + exponent
    low = 63 - lax.clz(significand & (~significand + 1)).astype(_i64) + exponent

    chunks = -(-k // _moduli.CHUNK)
    tail = ((0, 0), (0, 0), (0, chunks * _moduli.CHUNK - k))
    chunked = partial(jnp.reshape, shape=(operand.batch, operand.rows, chunks, _moduli.CHUNK))
    nothing = -(2**31)
    chunk_emax = chunked(jnp.pad(jnp.where(nonzero, top, nothing), tail, constant_values=nothing)).max(-1)
    shift = 16 + exponent - jnp.repeat(chunk_emax, _moduli.CHUNK, axis=-1)[..., :k]
    scaled = jnp.where(shift >= 0, shift_left(significand, shift), ceil_shift_right(significand, -shift))

    nnz = nonzero.sum(-1, dtype=_i64)
    emax = jnp.where(nnz > 0, chunk_emax.max(-1), 0)

    def joined(terms: Array, power: int) -> Array:
        chunk_sum = chunked(jnp.pad(jnp.where(nonzero, terms, 0), tail)).sum(-1, dtype=_u64)
        distance = power * (emax[..., None] - chunk_emax)
        return jnp.where(chunk_sum > 0, ceil_shift_right(chunk_sum, distance), 0).sum(-1, dtype=_u64)

    sumsq, sumabs = joined(scaled * scaled, 2), joined(scaled, 1)
    lsb = jnp.where(nnz > 0, jnp.where(nonzero, low, 2**31).min(-1), 0)

    nan, inf = jnp.isnan(x).any(-1), jnp.isinf(x).any(-1)
    flags = nan.astype(_i64) + 2 * inf.astype(_i64)
    sums = (lax.bitcast_convert_type(x, _i64) for x in (sumsq, sumabs))
    table = jnp.stack([emax, lsb, next(sums), nnz, flags, next(sums)], axis=-1)
    word = word_of(parts_occupied(chunked(jnp.pad(nonzero, tail)).any(-1), 0, chunks))
    return row_scales(table, word, moduli, fewer, partial(count_rounded, operand), operand.field)


def log2_chunks_of_part(chunks: int) -> int:
    """log2 of the fewest chunks, a power of two, of which 64 parts reach ``chunks``."""
    return max(0, (-(-chunks // OCCUPANCY_PARTS) - 1).bit_length())


def part_length(k: int) -> int:
    """The elements of a part."""
    return _moduli.CHUNK << log2_chunks_of_part(-(-k // _moduli.CHUNK))


def parts_occupied(nonempty: Array, first: Array | int, chunks: int) -> Array:
    """Whether each of 64 parts of k, of ``chunks`` chunks in all, is that of a nonempty chunk: bool[..., 64] from
    bool[..., chunks from ``first`` on]."""
    part = (first + jnp.arange(nonempty.shape[-1])) >> log2_chunks_of_part(chunks)
    return (nonempty[..., None] & (part[:, None] == jnp.arange(OCCUPANCY_PARTS))).any(-2)


def word_of(bits: Array) -> Array:
    """Bits, the lowest first, as a word: int64[...] from bool[..., 64]."""
    place = jnp.arange(OCCUPANCY_PARTS, dtype=_u64)
    return lax.bitcast_convert_type((bits.astype(_u64) << place).sum(-1, dtype=_u64), _i64)


def count_rounded(operand: Operand, scale: Array) -> Array:
    """How many elements of every row are no multiples of 2^-scale: int64[batch, rows]."""
    _, significand, exponent, _ = decompose(operand.parts())
    low = 63 - lax.clz(significand & (~significand + 1)).astype(_i64) + exponent
    return ((significand != 0) & (low < -scale[..., None].astype(_i64))).sum(-1, dtype=_i64)


def row_scales(
    table: Array,
    occupancy: Array,
    moduli: int,
    fewer: Fewer | None,
    rounded: Callable[[Array], Array],
    field: Field = REAL,
) -> tuple[Array, Array]:
    """Scales, and statistics completed by their last two fields, from the others int64[batch, rows, 6].

    ``rounded(scale)`` counts the elements of every row that are no multiples of 2^-scale.
    """
    lsb, nnz = table[..., 1], table[..., 3]
    scale = scales(table, _moduli.bound(moduli, field.moduli))
    special = scale <= SCALE_INF
    count = jnp.where(special | (scale >= -lsb), 0, nnz)
    if fewer:
        smaller = scales(table, _moduli.bound(fewer.moduli, field.moduli))
        few = jnp.where(special | (smaller >= -lsb), 0, rounded(smaller))
        taken = few <= fewer.most_rounded
        scale, count = jnp.where(taken, smaller, scale), jnp.where(taken, few, count)
    return scale, jnp.concatenate([table, count[..., None], occupancy[..., None]], axis=-1)


def scales(table: Array, bound: _moduli.Bound) -> Array:
    """Scales int32[batch, rows] from statistics int64[batch, rows, 6 or more]."""
    emax, lsb, sumsq, nnz, flags = (table[..., field] for field in range(5))
    exponent = _scale_exponent(emax, lsb, lax.bitcast_convert_type(sumsq, _u64), nnz, bound)
    special = jnp.where(flags & 1 != 0, SCALE_NAN, SCALE_INF)
    return jnp.where(flags != 0, special, exponent).astype(jnp.int32)


def _scale_exponent(emax: Array, lsb: Array, sumsq: Array, nnz: Array, bound: _moduli.Bound) -> Array:
    """The largest mu with 2^mu norm2 + sqrt(nnz)/2 <= H, and no more than makes the row exact."""
    mantissa, unit = bound
    root = jnp.sqrt(nnz.astype(jnp.float32)).astype(_i64) + 2
    for _ in range(4):  # down to the smallest root with root^2 >= nnz
        root = jnp.where((root - 1) ** 2 >= nnz, root - 1, root)
    below = -1 - unit
    half = root << below if below >= 0 else -(-root >> -below)
    room = (mantissa - half).astype(_u64)
    room = room * room

    def normalised(x: Array) -> Array:
        return x << lax.clz(x)

    exceeds = normalised(sumsq) > normalised(room)
    ratio = bit_length(room) - bit_length(sumsq) - exceeds
    return jnp.where(nnz > 0, jnp.minimum(-lsb, (ratio >> 1) - emax + 16 + unit), 0)


def residues(operand: Operand, scale: Array, moduli: int) -> Array:
    """Residues uint8[batch, moduli, rows, padded k] of RNE(x 2^scale), 0 in rows of special values.

    For complex rows [batch, 2 moduli, rows, padded k]: a_r + s a_i for all moduli, then a_r - s a_i, s^2 = -1.
    """
    negative, significand, exponent, _ = decompose(operand.parts())
    shift = exponent + scale[..., None].astype(_i64)
    dropped = jnp.clip(-shift, 1, 63).astype(_u64)
    tie = _u64(1) << (dropped - 1)
    rounded = (significand + (tie - 1) + ((significand >> dropped) & 1)) >> dropped
    magnitude = jnp.where(shift >= 0, significand, jnp.where(shift < -54, 0, rounded))
    magnitude = jnp.where((scale <= SCALE_INF)[..., None], 0, magnitude)
    power = jnp.clip(shift, 0, 2 * _HALF_SHIFT)
    halves = jnp.minimum(power, _HALF_SHIFT), jnp.maximum(power - _HALF_SHIFT, 0)

    p = _column(operand.field.moduli[:moduli], _u64)
    residue = magnitude[:, None] % p
    for half in halves:
        residue = residue * ((_u64(1) << half.astype(_u64))[:, None] % p) % p
    residue = jnp.where(negative[:, None] & (residue > 0), p - residue, residue)
    if operand.field is COMPLEX:
        re, im = residue[..., 0::2], residue[..., 1::2]
        s = _column(map(_moduli.imaginary_unit, operand.field.moduli[:moduli]), _u64)
        residue = jnp.concatenate([re + s * im, re + (p - s) * im], axis=1) % jnp.concatenate([p, p])
    tail = ((0, 0), (0, 0), (0, 0), (0, padded_k(operand.k) - operand.k))
    return jnp.pad(residue.astype(jnp.uint8), tail)


def _column(values: Iterable[int], dtype: Any) -> Array:
    """One value a plane, [planes, 1, 1], of scalars: the rules of shardings take no array that is a constant."""
    return jnp.stack([jnp.full((1, 1), value, dtype) for value in values])


_HALF_SHIFT = 40
"""Shifts stay below 2^80: the norm bound H of the largest modulus set is below 2^78."""


def quantize(operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array, Array]:
    """Residues, scales and statistics of the rows of ``operand``."""
    scale, table = stats(operand, moduli, fewer)
    return residues(operand, scale, moduli), scale, table


def grouped_mma(lhs: Array, rhs: Array, *, field: Field = REAL, summand: bool = False) -> Array:
    """v = X (P/p)^-1 mod p for every plane and its modulus p: uint8[batch, planes, m, padded n]; half of it
    in complex products."""
    del summand  # always residues
    moduli, k, n = lhs.shape[1] // field.parts, lhs.shape[3], rhs.shape[2]
    plane_moduli = field.planes(moduli)
    inverses = _moduli.crt(moduli, field.moduli).inverses * field.parts
    if field is COMPLEX:
        inverses = tuple(inverse * pow(2, -1, p) % p for inverse, p in zip(inverses, plane_moduli, strict=True))
    p = _column(plane_moduli, jnp.int32)
    v = jnp.zeros((*lhs.shape[:3], n), jnp.int32)
    for start in range(0, k, _K_BLOCK):
        block = slice(start, start + _K_BLOCK)
        x = lax.dot_general(
            lhs[..., block].astype(jnp.int32), rhs[..., block].astype(jnp.int32), (((3,), (3,)), ((0, 1), (0, 1)))
        )
        v = (v + x % p) % p
    v = v * _column(inverses, jnp.int32) % p
    return jnp.pad(v.astype(jnp.uint8), ((0, 0), (0, 0), (0, 0), (0, padded(n) - n)))


_K_BLOCK = 2**15
"""Longest contraction of unsigned bytes that a signed 32-bit sum holds."""


def combine(v: Array, lhs_scale: Array, rhs_scale: Array, lhs: Operand, rhs: Operand, moduli: int) -> Array:
    """C = RNE(X 2^-(mu + nu)) as [batch, m, n] of the operands' dtype, special values classified.

    Of a complex product each part is the exact integer rounded once, and classified by itself.
    """
    exponent = -(lhs_scale[..., :, None].astype(_i64) + rhs_scale[..., None, :].astype(_i64))
    special = (lhs_scale <= SCALE_INF)[..., :, None] | (rhs_scale <= SCALE_INF)[..., None, :]
    parts = []
    for residues, columns in zip(part_residues(v, moduli, rhs), part_columns(rhs), strict=True):
        c = round_to_float64(*magnitude(reconstruct(residues, moduli, lhs.field)), exponent)
        parts.append(jnp.where(special, classify(lhs.parts(), columns), c))
    return lhs.field.joined(parts)


def part_residues(v: Array, moduli: int, rhs: Operand) -> list[Array]:
    """Residues of every part of the outputs."""
    v = v[..., : rhs.rows]
    return [v] if rhs.field is REAL else list(_separate(v.astype(_u64), moduli))


def part_columns(rhs: Operand) -> list[Array]:
    """The columns with which left rows of parts give every part of the outputs."""
    y = rhs.parts()
    if rhs.field is REAL:
        return [y]
    y_re, y_im = y[..., 0::2], y[..., 1::2]
    return [jnp.stack(pair, axis=-1).reshape(y.shape) for pair in ((y_re, -y_im), (y_im, y_re))]


def _separate(v: Array, moduli: int) -> tuple[Array, Array]:
    """The residues of both parts: c_r = c+ + c- and c_i = (c+ - c-) / s = s c- - s c+ of the halved c+ and c-."""
    plus, minus = v[:, :moduli], v[:, moduli:]
    p = _column(COMPLEX.moduli[:moduli], _u64)
    s = _column(map(_moduli.imaginary_unit, COMPLEX.moduli[:moduli]), _u64)
    return (plus + minus) % p, (s * minus + (p - s) * plus) % p


def reconstruct(v: Array, moduli: int, field: Field = REAL) -> list[Array]:
    """X in 32-bit words of two's complement, lowest first, from v_i = X (P/p_i)^-1 mod p_i, moduli on axis 1.

    X = S - q P, S = sum_i v_i P/p_i, with q = round(S / P), right for |X| <= P (1/2 - 2^-8). The v_i are summed by
    groups first, y_g = sum_i v_i Q_g/p_i < 2^26.
    """
    crt = _moduli.crt(moduli, field.moduli)
    fraction_bits = 38
    sums = [jnp.zeros_like(v[:, 0], _u64) for _ in range(crt.limbs)]
    quotient = jnp.full_like(sums[0], 1 << (fraction_bits - 1))

    def accumulate(x: Array, weight: int) -> None:
        for word in range(crt.limbs):
            sums[word] += x * _u64(weight >> (32 * word) & 0xFFFFFFFF)

    first = 0
    for group, product, weight in zip(crt.groups, crt.group_products, crt.group_weights, strict=True):
        y = sum((v[:, first + i].astype(jnp.uint32) * jnp.uint32(product // p) for i, p in enumerate(group)))
        first += len(group)
        y = jnp.asarray(y).astype(_u64)
        quotient += y * _u64((2 ** (fraction_bits + 1) + product) // (2 * product))
        accumulate(y, weight)
    accumulate(quotient >> fraction_bits, 2 ** (32 * crt.limbs) - crt.product)
    return _carry(sums)


def magnitude(words: list[Array]) -> tuple[Array, list[Array]]:
    """(X < 0, |X| in 32-bit words) from words of two's complement."""
    negative = words[-1] >> 31 == 1
    complement = _carry([(word ^ 0xFFFFFFFF) + (1 if i == 0 else 0) for i, word in enumerate(words)])
    return negative, [jnp.where(negative, x, y) for x, y in zip(complement, words, strict=True)]


def _carry(sums: list[Array]) -> list[Array]:
    limbs, carry = [], jnp.zeros_like(sums[0])
    for value in sums:
        value = value + carry
        limbs.append(value & 0xFFFFFFFF)
        carry = value >> 32
    return limbs


def round_to_float64(negative: Array, limbs: list[Array], exponent: Array) -> Array:
    """RNE(+-|X| 2^exponent): one rounding, subnormals and overflow included; +0 for X = 0."""
    length = jnp.zeros_like(exponent)
    for i, limb in enumerate(limbs):
        length = jnp.where(limb > 0, 32 * i + bit_length(limb), length)
    top = length - 1 + exponent  # 2^top <= |C| < 2^(top + 1)
    lowest = jnp.maximum(top - 52, -1074) - exponent  # bit of X that is C's last place
    doubled = jnp.zeros_like(limbs[0])  # |X| in half units of that place, rounded down
    sticky = jnp.zeros_like(negative)
    for i, limb in enumerate(limbs):
        shift = 32 * i - (lowest - 1)
        doubled |= shift_left(limb, shift)
        sticky |= shift_left(shift_left(limb, shift), -shift) != limb
    kept, half = doubled >> 1, doubled & 1
    kept += half & (sticky.astype(_u64) | (kept & 1))
    field = jnp.maximum(top + 1022, 0)
    bits = jnp.where(top > 1023, _INFINITY, (field.astype(_u64) << 52) + kept)
    bits = jnp.where(length > 0, bits | (negative.astype(_u64) << 63), 0)
    return lax.bitcast_convert_type(bits, jnp.float64)


_INFINITY = 0x7FF << 52


def classify(lhs: Array, rhs: Array) -> Array:
    """The IEEE class of every output: its float64 product with all finite nonzeros replaced by +-1."""

    def signs(x: Array) -> Array:
        negative, significand, _, special = decompose(x)
        return jnp.where(special, x, jnp.where(significand == 0, 0.0, jnp.where(negative, -1.0, 1.0)))

    return lax.dot_general(signs(lhs), signs(rhs), (((2,), (2,)), ((0,), (0,))))
