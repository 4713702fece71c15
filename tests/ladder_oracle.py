"""The ladder of certified contracts in Python integers and numpy's float32, independent of the package.

With u = 2^-53, S = |A||B| and the integers A', B' and scales mu, nu of ``oracle``, an output is certain to obey
|C - AB| <= c u S if E <= (c - 1) u S_lo 2^(mu + nu), where E = min(r (B/2 + 1/8), h) + min(s (A/2 + 1/8), f) bounds
|X - AB 2^(mu + nu)|: at most r elements of the row are rounded, its elements are below A 2^-mu, and
f = sum |a| 2^mu / 2 + nonzeros / 8; s, B and h are those of the column. Only what meets a nonzero is an error: r and s
are at most the length of the parts of k in which both have any. S_lo <= S comes from truncated magnitudes.

A row takes the scale of fewer moduli where that rounds few of its elements.
"""

import math
from fractions import Fraction
from functools import reduce

import numpy as np

import oracle

F32 = np.float32


def magnitudes(x, emax, bits):
    """floor(|x| 2^(bits - emax)) of rows x[..., :], int64."""
    significand, exponent = oracle.decompose(x)
    shift = exponent + bits - emax[..., None]
    down = np.clip(-shift, 0, 63)
    return (abs(significand) >> down) << np.clip(shift, 0, 63)


def subset(k, step):
    return np.arange(k) // 64 % step == 0


def coarse_step(k):
    return 1 if k < 1024 else 2 if k < 4096 else max(4, -(-k // 2**15))


def fine_step(k):
    return 1 if k <= 2**17 else -(-k // 2**17)


def tau_half(c):
    exact = (Fraction(c) - 1) * (1 - Fraction(1, 2**16)) / 2
    value = F32(min(float(exact), 3e38))
    return value if Fraction(float(value)) <= exact else np.nextafter(value, F32(0))


def rounded_up(x):
    """int64 to float32, upwards."""
    y = x.astype(F32)
    return np.where(y.astype(np.float64) < x, np.nextafter(y, F32(np.inf)), y)


def count_rounded(x, scale):
    """The elements of every row x[..., :] that are no multiples of 2^-scale; 0 for a sentinel."""
    significand, exponent = oracle.decompose(x)
    below = np.clip(-(exponent + np.where(oracle.is_sentinel(scale), 2000, scale)[..., None]), 0, 62)
    return (significand & ((1 << below) - 1) != 0).sum(-1)


def few(k, c, n1):
    """(moduli, most): a row takes the scale of so few moduli where it rounds no more of its elements; None if never."""
    for n in range(2, n1 if k >= 1024 else 0):
        mantissa, exponent = oracle.bound(n)
        root = math.isqrt(k - 1) + 1
        headroom = (mantissa - 1) * 2.0**exponent - root / 2
        if mantissa * 2.0**exponent <= root:
            continue
        rounded = math.log2(c - 1) + math.log2(k) / 2 + math.log2(headroom) - 59
        if rounded >= math.log2(3) and 1.5 * math.log2(k) + 23.7 - math.log2(headroom) <= 2 * rounded - 7:
            return n, min(int(2**rounded), 64)
    return None


def row_scales(x, stats, n1, fewer):
    """The scales of rows, and how many elements they round at most."""
    scale = oracle.scales(stats, n1)
    rounded = np.where(count_rounded(x, scale) > 0, stats.nnz, 0)
    if fewer is None:
        return scale, rounded
    n, most = fewer
    smaller = oracle.scales(stats, n)
    count = count_rounded(x, smaller)
    return np.where(count <= most, smaller, scale), np.where(count <= most, count, rounded)


def coarse_exponent(stats):
    """What coarse magnitudes are relative to: the largest element, or 16 to 32 times the mean of the nonzeros."""
    mean = np.frexp((stats.sumabs // np.maximum(stats.nnz, 1)).astype(np.float64))[1] - 16
    return np.where(stats.nnz > 0, stats.emax + np.minimum(mean + 4, 0), stats.emax)


def row_bounds(stats, scale, rounded, bits):
    """(half norm, half of the largest, unit, rounded) of every row."""
    special = oracle.is_sentinel(scale)
    e = np.where(special, 0, stats.emax + scale)
    half = rounded_up(stats.sumabs) * np.exp2((e - 17).astype(F32)) + stats.nnz.astype(F32) / F32(8)
    largest = np.exp2((e - 1).astype(F32)) + F32(0.125)
    above = coarse_exponent(stats) if bits == 8 else stats.emax
    unit = np.exp2(np.where(special, 0, above + scale - bits - 26).astype(F32))
    rounded = np.where(special | (scale >= -stats.lsb), 0, rounded).astype(F32)
    return tuple(np.where(special, F32(x), y) for x, y in ((0, half), (0, largest), (1, unit), (0, rounded)))


def overlap(a, b):
    """The length of the parts of k in which both a row of a[m, k] and a column of b[k, n] have nonzeros."""
    part = oracle.CHUNK
    while 64 * part < a.shape[1]:
        part *= 2
    shared = oracle.occupancy(a)[:, None] & oracle.occupancy(b.T)[None]
    return np.vectorize(lambda word: part * int(word).bit_count(), otypes=[F32])(shared)


def certify(rows, columns, shared, magnitude, tau):
    """Whether every output is certified, and the factor of u S of what it certifies before the final rounding."""
    f, a, unit_row, r = (x[:, None] for x in rows)
    h, b, unit_column, s = (x[None, :] for x in columns)
    error = np.minimum(np.minimum(r, shared) * b, h) + np.minimum(np.minimum(s, shared) * a, f)
    bound = magnitude.astype(F32) * unit_row * unit_column
    assert error.dtype == bound.dtype == F32
    free = error == 0
    holds = free | (error <= bound * tau)
    with np.errstate(divide="ignore", invalid="ignore"):
        return holds, np.where(free | ~holds, F32(0), error / (F32(0.5) * bound))


def first_scales(a, b, c, n1):
    """The scales of the rows of a and the columns of b on the first rung, and how many elements they round."""
    fewer = few(a.shape[1], c, n1)
    return zip(*(row_scales(x, oracle.statistics(x), n1, fewer) for x in (a, b.T)), strict=True)


def wide_count(n1):
    return min(n1 + 5, 20)


def rungs(a, b, c, n1):
    """The rung of every output of a[m, k] b[k, n], and the worst certified factor."""
    k = a.shape[1]
    rows, columns = a, b.T
    stats = [oracle.statistics(x) for x in (rows, columns)]
    (narrow, rounded), wide = first_scales(a, b, c, n1), [oracle.scales(s, wide_count(n1)) for s in stats]
    planes = [np.where((s.flags > 0)[:, None], 0, x) for s, x in zip(stats, (rows, columns), strict=True)]

    def bounds(scales, bits):
        return [row_bounds(s, scale, r, bits) for s, scale, r in zip(stats, scales, rounded, strict=True)]

    shared = overlap(a, b)
    at = subset(k, coarse_step(k))
    coarse = [np.minimum(magnitudes(x[:, at], coarse_exponent(s), 8), 255) for x, s in zip(planes, stats, strict=True)]
    first, worst = certify(*bounds(narrow, 8), shared, coarse[0] @ coarse[1].T, tau_half(c))

    at = subset(k, fine_step(k))
    (high, low), (up, down) = (
        divmod(magnitudes(x[:, at], s.emax, 14), 128) for x, s in zip(planes, stats, strict=True)
    )
    fine = 2**14 * (high @ up.T) + 2**7 * (high @ down.T + low @ up.T)
    masks = [(x[:, at] != 0) & np.isfinite(x[:, at]) for x in planes]
    zero = (masks[0].astype(np.int64) @ masks[1].T.astype(np.int64) == 0) & (fine_step(k) == 1)
    second, of_second = certify(*bounds(narrow, 14), shared, fine, tau_half(c))
    third, of_third = certify(*bounds(wide, 14), shared, fine, tau_half(c))
    rung = np.where(first, 1, np.where(zero | second, 2, np.where(third, 3, 4)))
    factors = np.where(first, worst, np.where(zero, 0, np.where(second, of_second, of_third)))
    return rung, factors.max(initial=0)


def normalise(x):
    """x = fraction 2^(exponent - 53) with 2^52 <= |fraction| < 2^53, as integers; x != 0."""
    fraction, exponent = math.frexp(x)
    return int(math.ldexp(fraction, 53)), exponent


def windowed_sum(row, column):
    terms = [(*normalise(x), *normalise(y)) for x, y in zip(row, column, strict=True) if x and y]
    if not terms:
        return 0.0
    top = max(e + f for _, e, _, f in terms)
    total = 0
    for x, e, y, f in terms:
        magnitude = abs(x * y) >> (12 + top - e - f)
        total += magnitude if (x < 0) == (y < 0) else -magnitude
    return oracle.round_to_float64(total, top - 94)


CHAIN = 8


def chain_group(k, c):
    """Chains of a group of the float64 sum, 0 where c has no room for its roundings."""
    if k < 4:
        return 0
    group = max(2**i for i in range(32) if 4 * 4**i <= k)
    roundings = CHAIN + group - 1 + math.ceil(math.ceil(k / CHAIN) / group) - 1
    return group if roundings + Fraction(1, 2**20) <= c else 0


def chain_sum(row, column, group):
    """The float64 sum in its fixed order, None where it is not taken: it is small, or something has overflowed."""

    def rounded(x):
        y = oracle.round_to_float64(*integer_and_exponent(x))
        if math.isinf(y):
            raise OverflowError
        return Fraction(y)

    terms = [Fraction(x) * Fraction(y) for x, y in zip(row.tolist(), column.tolist(), strict=True)]
    chains = [terms[i : i + CHAIN] for i in range(0, len(terms), CHAIN)]
    groups = [chains[i : i + group] for i in range(0, len(chains), group)]

    def add(terms):
        return reduce(lambda total, x: rounded(total + x), terms, Fraction(0))

    try:
        total = add(add(add(chain) for chain in of_group) for of_group in groups)
    except OverflowError:
        return None
    return float(total) if abs(total) >= Fraction(1, 2**960) else None


def integer_and_exponent(x):
    """x = integer 2^exponent, for a sum of products of float64 values."""
    exponent = -(x.denominator.bit_length() - 1)
    return x.numerator, exponent


def last_sum(row, column, c):
    """An output of the last rung under componentwise(c)."""
    group = chain_group(len(row), c)
    total = chain_sum(row, column, group) if group else None
    return windowed_sum(row, column) if total is None else total


def correctly_rounded(a, b):
    """The true product of finite operands."""
    x = oracle.integers(a) @ oracle.integers(b)
    return np.vectorize(lambda t: oracle.round_to_float64(t, -2 * oracle.UNIT), otypes=[float])(x)


def product(a, b, c, n1):
    """a[m, k] b[k, n] under componentwise(c), whose first rung has n1 moduli; and the rungs."""
    rung, _ = rungs(a, b, c, n1)
    result, wide = oracle.scaled_product(a, b, *next(first_scales(a, b, c, n1))), oracle.product(a, b, wide_count(n1))
    result = np.where(rung == 3, wide, result)
    for i, j in np.argwhere(rung == 4):
        result[i, j] = last_sum(a[i], b[:, j], c)
    return result, rung


def exact_product(a, b):
    """a[m, k] b[k, n] correctly rounded, special values classified."""
    finite = np.isfinite(a).all(1)[:, None] & np.isfinite(b).all(0)
    result = correctly_rounded(np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0))
    for i, j in np.argwhere(~finite):
        result[i, j] = math.nan if np.isnan(a[i]).any() or np.isnan(b[:, j]).any() else oracle.special(a[i], b[:, j])
    return result


def default_product(a, b):
    """a[..., m, k] times b[..., k, n] under the default contract, componentwise("sqrt_k")."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.ndim > 2:
        return np.stack([default_product(x, y) for x, y in zip(a, b, strict=True)])
    return product(a, b, 1 + math.sqrt(a.shape[1]), 15)[0]
