"""The definition of a product in Python integers, independent of the package.

Row i of the left operand has an integer scale mu_i, column j of the right one nu_j, and

    A'_ih = RNE(a_ih 2^mu_i)   B'_hj = RNE(b_hj 2^nu_j)   X = A' B'   C_ij = RNE(X_ij 2^-(mu_i + nu_j)).

A complex operand is the real one of its parts, real and imaginary in turn, with one scale a row; C_ij has
the parts of X = A' B', each rounded once.

Integers that are proven to fit stay in int64 arrays; whatever may not is an object array of ints.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

MODULI = (
    256, 253, 251, 249, 247, 241, 239, 235, 233, 229,
    227, 223, 217, 211, 199, 197, 193, 191, 181, 179,
)  # fmt: skip
COMPLEX_MODULI = (
    241, 233, 229, 221, 205, 197, 193, 181, 173, 157,
    149, 137, 113, 109, 101, 97, 89, 61, 73, 53,
)  # fmt: skip
COUNTS = range(2, 21)
CHUNK = 128
SCALE_NAN = -(2**31)
SCALE_INF = SCALE_NAN + 1
UNIT = 1074
"""Every finite float64 is an integer multiple of 2^-UNIT."""


class Statistics(NamedTuple):
    """Integer statistics of every row, int64 arrays of shape [...]."""

    emax: np.ndarray
    lsb: np.ndarray
    sumsq: np.ndarray
    nnz: np.ndarray
    flags: np.ndarray
    sumabs: np.ndarray


def bound(n, moduli=MODULI):
    """(h, e) with h 2^e = sqrt(P (1/2 - 2^-8)) rounded down to a 32-bit h."""
    square = Fraction(math.prod(moduli[:n]) * 127, 256)
    exponent = -64
    while (h := math.isqrt(math.floor(square / Fraction(4) ** exponent))) >= 2**32:
        exponent += 1
    assert h >= 2**31
    return h, exponent


def decompose(x):
    """Finite x as significand 2^exponent, |significand| < 2^53; NaN and Inf count as 0."""
    fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    return np.ldexp(fraction, 53).astype(np.int64), exponent.astype(np.int64) - 53


def ceil_shift(x, shift):
    """ceil(x / 2^shift) for 0 <= x < 2^53 and any shift >= 0."""
    return -(-x >> np.minimum(shift, 63))


def statistics(x):
    """Statistics of the rows x[..., :]."""
    x = np.asarray(x, np.float64)
    k = x.shape[-1]
    flags = np.isnan(x).any(-1) + 2 * np.isinf(x).any(-1)
    significand, exponent = decompose(x)
    nonzero = significand != 0
    top = np.where(nonzero, exponent + 53, -(2**20))

    pad = [(0, 0)] * (x.ndim - 1) + [(0, -k % CHUNK)]
    chunks = (*x.shape[:-1], -1, CHUNK)
    magnitude = np.pad(abs(significand), pad).reshape(chunks)
    top_chunk = np.pad(top, pad, constant_values=-(2**20)).reshape(chunks)
    emax_chunk = top_chunk.max(-1)
    slices = ceil_shift(magnitude, 53 - 16 + emax_chunk[..., None] - top_chunk)
    emax = emax_chunk.max(-1)
    distance = emax[..., None] - emax_chunk
    sumsq = ceil_shift((slices**2).sum(-1), 2 * distance).sum(-1)
    sumabs = ceil_shift(slices.sum(-1), distance).sum(-1)

    lowest_bit = np.frexp((significand & -significand).astype(np.float64))[1] - 1
    lsb = np.where(nonzero, exponent + lowest_bit, 2**20).min(-1)
    nnz = nonzero.sum(-1)
    emax, lsb = (np.where(nnz > 0, value, 0) for value in (emax, lsb))
    return Statistics(emax, lsb, sumsq, nnz, flags, sumabs)


def occupancy(x):
    """For every row x[..., :], a word with a bit for each of 64 equal parts of k that has a nonzero; parts are as short
    as powers of two of chunks allow."""
    part = CHUNK
    while 64 * part < x.shape[-1]:
        part *= 2
    nonzero = np.isfinite(x) & (np.asarray(x) != 0)
    starts = range(0, x.shape[-1], part)
    return sum(nonzero[..., at : at + part].any(-1).astype(np.uint64) << np.uint64(at // part) for at in starts)


def scale_exponent(emax, lsb, sumsq, nnz, n, moduli=MODULI):
    """The scale mu of one row for n moduli."""
    if nnz == 0:
        return 0
    h, eh = bound(n, moduli)
    root = math.isqrt(nnz - 1) + 1
    half = math.ceil(Fraction(root, 2) / Fraction(2) ** eh)
    assert half < h, "k is too long for so few moduli"
    ratio = Fraction((h - half) ** 2, sumsq)
    d = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    d -= Fraction(2) ** d > ratio
    return min(-lsb, d // 2 - emax + 16 + eh)


def scales(stats, n, moduli=MODULI):
    """Scale of every row, or its sentinel, as int64."""

    def one(emax, lsb, sumsq, nnz, flags, sumabs):
        if flags:
            return SCALE_NAN if flags & 1 else SCALE_INF
        return scale_exponent(int(emax), int(lsb), int(sumsq), int(nnz), n, moduli)

    return np.vectorize(one, otypes=[np.int64])(*stats)


def is_sentinel(scale):
    return scale <= SCALE_INF


def quantize(x, scale):
    """RNE(x 2^scale) as Python integers; 0 in rows with a sentinel scale."""
    significand, exponent = decompose(x)
    significand = np.where(is_sentinel(scale)[..., None], 0, significand)
    shift = exponent + np.where(is_sentinel(scale), 0, scale)[..., None]
    down = np.clip(-shift, 0, 62)
    quotient = significand >> down
    twice = 2 * (significand & ((1 << down) - 1))
    quotient += (twice > 1 << down) | ((twice == 1 << down) & (quotient & 1 == 1))
    return quotient.astype(object) << np.maximum(np.where(significand != 0, shift, 0), 0)


def round_to_float64(x, exponent):
    """x 2^exponent, rounded once. (Division of Python integers is correctly rounded.)"""
    try:
        return float(x << exponent) if exponent >= 0 else x / (1 << -exponent)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def special(row, column):
    """The output of a row and a column one of which has a NaN or an Inf."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        products = row * column
    # A product of finite elements that overflows is no infinity.
    products = np.where(np.isfinite(row) & np.isfinite(column), 0.0, products)
    infinite = set(products[np.isinf(products)])
    return math.nan if np.isnan(products).any() or len(infinite) != 1 else infinite.pop()


def integer_product(a, b, n):
    """X, mu, nu of a[m, k] and b[k, n]; X as Python integers."""
    mu, nu = scales(statistics(a), n), scales(statistics(b.T), n)
    x = quantize(a, mu) @ quantize(b.T, nu).T
    assert 2 * abs(x).max(initial=0) < math.prod(MODULI[:n])
    return x, mu, nu


def product(a, b, n):
    """a[..., m, k] times b[..., k, n] with n moduli, as float64."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.ndim > 2:
        return np.stack([product(x, y, n) for x, y in zip(a, b, strict=True)])
    return _rounded(a, b, *integer_product(a, b, n))


def scaled_product(a, b, mu, nu):
    """a[m, k] times b[k, n] from integers of these scales, as float64."""
    return _rounded(a, b, quantize(a, mu) @ quantize(b.T, nu).T, mu, nu)


def _rounded(a, b, x, mu, nu):
    c = np.zeros(x.shape)
    for i, j in np.ndindex(c.shape):
        if is_sentinel(mu[i]) or is_sentinel(nu[j]):
            c[i, j] = special(a[i], b[:, j])
        else:
            c[i, j] = round_to_float64(x[i, j], -int(mu[i] + nu[j]))
    return c


def parts(x):
    """The float64s of complex rows: [..., k] to [..., 2k]."""
    x = np.ascontiguousarray(x, np.complex128)
    return x.view(np.float64).reshape(*x.shape[:-1], 2 * x.shape[-1])


def columns_of_parts(b):
    """Complex b[k, n] as two real [2k, n], against which rows of parts give the parts of the product."""
    real = np.stack([b.real, -b.imag], axis=1), np.stack([b.imag, b.real], axis=1)
    return [x.reshape(2 * b.shape[0], b.shape[1]) for x in real]


def complex_product(a, b, n):
    """a[..., m, k] times b[..., k, n] with n complex moduli, as complex128."""
    a, b = np.asarray(a, np.complex128), np.asarray(b, np.complex128)
    if a.ndim > 2:
        return np.stack([complex_product(x, y, n) for x, y in zip(a, b, strict=True)])
    rows, columns = parts(a), parts(b.T)
    mu, nu = (scales(statistics(x), n, COMPLEX_MODULI) for x in (rows, columns))
    left, right = quantize(rows, mu), quantize(columns, nu)
    x_re = left[:, 0::2] @ right[:, 0::2].T - left[:, 1::2] @ right[:, 1::2].T
    x_im = left[:, 0::2] @ right[:, 1::2].T + left[:, 1::2] @ right[:, 0::2].T
    c = np.zeros((*x_re.shape, 2))
    for part, (x, of_part) in enumerate(zip((x_re, x_im), columns_of_parts(b), strict=True)):
        assert 2 * abs(x).max(initial=0) < math.prod(COMPLEX_MODULI[:n])
        for i, j in np.ndindex(x.shape):
            if is_sentinel(mu[i]) or is_sentinel(nu[j]):
                c[i, j, part] = special(rows[i], of_part[:, j])
            else:
                c[i, j, part] = round_to_float64(x[i, j], -int(mu[i] + nu[j]))
    return c.view(np.complex128)[..., 0]


def integers(x):
    """Finite float64 as Python integers in units of 2^-UNIT."""
    significand, exponent = decompose(np.asarray(x))
    shift = np.where(significand != 0, exponent + UNIT, 0)
    return (significand >> np.maximum(-shift, 0)).astype(object) << np.maximum(shift, 0)


def errors(c, a, b):
    """|C - AB| exactly, in units of 2^-2UNIT."""
    return abs((integers(c) << UNIT) - integers(a) @ integers(b))


def complex_errors(c, a, b):
    """|Re(C - AB)| and |Im(C - AB)| exactly, in units of 2^-2UNIT."""
    rows = parts(a)
    return [errors(x, rows, y) for x, y in zip((c.real, c.imag), columns_of_parts(b), strict=True)]


def bits(x):
    """The bits of float64 values, every NaN alike."""
    x = np.array(x, np.float64)
    x[np.isnan(x)] = np.nan
    return x.view(np.uint64)


def assert_same_bits(actual, expected, context=""):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype == np.complex128:
        actual, expected = (np.stack([x.real, x.imag], axis=-1) for x in (actual, expected))
    assert actual.dtype == np.float64
    differs = bits(actual) != bits(expected)
    assert not differs.any(), (
        f"{differs.sum()} of {differs.size} outputs differ {context}: first at "
        f"{np.argwhere(differs)[0].tolist()}: {actual[differs][0].hex()} is not {expected[differs][0].hex()}"
    )
