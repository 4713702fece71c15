"""Operands: every family makes the rows of one operand, float64 of shape [..., k], or the parts of complex ones.

A family is called with (rng, shape, n), n being the number of moduli, which some of them aim at.
"""

import numpy as np

import oracle

DBL_MAX = np.finfo(np.float64).max


def fractions(rng, shape, n=None):
    return rng.standard_normal(shape) * np.pi


def integers(rng, shape, n=None):
    return np.rint(fractions(rng, shape))


def thirds(rng, shape, n=None):
    return integers(rng, shape) / 3


def float32_values(rng, shape, n=None):
    return rng.standard_normal(shape, np.float32).astype(np.float64)


def phi(exponent):
    """(rand - 1/2) exp(phi randn); a factor in [1, 2) takes every row off the grid of rand."""

    def rows(rng, shape, n=None):
        spread = np.exp(exponent * rng.standard_normal(shape))
        return (rng.random(shape) - 0.5) * spread * rng.uniform(1, 2, (*shape[:-1], 1))

    return rows


def wide_exponents(rng, shape, n=None):
    """Exponents within +-300, element by element."""
    return np.ldexp(rng.standard_normal(shape), rng.integers(-300, 301, shape))


def tiny_tail(rng, shape, n=None):
    """Rows [x, 2^-300 y]: large positive and negative shifts in one row."""
    x = rng.standard_normal(shape)
    x[..., shape[-1] // 2 :] *= 2.0**-300
    return x


def half_rows(rng, shape, n=15):
    """Constant rows that become t + 1/2 + eps once scaled: every rounding goes the same way."""
    h, eh = oracle.bound(n)
    largest = min(h * 2.0**eh / np.sqrt(shape[-1]), 2.0**40)
    rows = (*shape[:-1], 1)
    value = np.floor(largest * rng.uniform(0.4, 1, rows)) + 0.5 + 2.0**-11
    value = np.ldexp(value, rng.integers(-40, 40, rows))
    return np.broadcast_to(value, shape).copy()


def ties(rng, shape, n=15):
    """Elements t + 1/2 of the last place kept, even and odd t: the first element sets the scale."""
    h, eh = oracle.bound(n)
    largest = h * 2.0**eh
    x = np.floor(min(0.3 * largest / np.sqrt(shape[-1]), 2.0**51) * rng.uniform(-1, 1, shape)) + 0.5
    x[..., 0] = np.floor(0.7 * largest)
    return np.ldexp(x, rng.integers(-40, 40, (*shape[:-1], 1)))


def subnormals(rng, shape, n=None):
    """Multiples of 2^-1074; every other row has a subnormal maximum."""
    x = np.ldexp(rng.integers(-(2**40), 2**40, shape).astype(np.float64), -1074)
    x[..., ::2, :] *= 2.0 ** rng.integers(0, 30)
    return x


def near_overflow(rng, shape, n=None):
    """Elements of either sign just below the largest float64, and a few small ones."""
    x = DBL_MAX * rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)
    return np.where(rng.random(shape) < 0.2, 2.0**-600 * x, x)


def moderate(rng, shape, n=None):
    """Exponents so small that products with `near_overflow` or `subnormals` stay on the edge."""
    return np.ldexp(rng.standard_normal(shape), rng.integers(-30, 4, shape))


def sparse(rng, shape, n=None):
    """Mostly zeros, with whole rows of them."""
    x = np.where(rng.random(shape) < 0.2, rng.standard_normal(shape), 0.0)
    return np.where(rng.random((*shape[:-1], 1)) < 0.3, 0.0, x)


def graded(rng, shape, n=None):
    return rng.standard_normal(shape) * 10 ** np.linspace(0, -16, shape[-1])


def special_values(rng, shape, n=None):
    """One row in three has an Inf, one in six a NaN; zeros meet them."""
    x = np.where(rng.random(shape) < 0.3, 0.0, rng.standard_normal(shape))
    rows = (*shape[:-1], 1)
    at = rng.integers(0, shape[-1], rows) == np.arange(shape[-1])
    value = rng.choice([np.inf, -np.inf, np.nan], rows)
    also = (rng.integers(0, shape[-1], rows) == np.arange(shape[-1])) & (rng.random(rows) < 0.3)
    x = np.where(also & (rng.random(rows) < 0.5), np.inf, x)
    return np.where(at & (rng.random(rows) < 0.5), value, x)


FINITE = {
    "fractions": fractions,
    "integers": integers,
    "thirds": thirds,
    "float32": float32_values,
    "phi=0.5": phi(0.5),
    "phi=2": phi(2),
    "phi=4": phi(4),
    "wide exponents": wide_exponents,
    "tiny tail": tiny_tail,
    "half rows": half_rows,
    "ties": ties,
    "subnormals": subnormals,
    "near overflow": near_overflow,
    "moderate": moderate,
    "sparse": sparse,
    "graded": graded,
}
FAMILIES = FINITE | {"special values": special_values}


def few_tiny(rng, shape, moduli=15):
    """Elements of 24 bits, i of them in row i far below the others: more than few in the last rows."""
    x = rng.standard_normal(shape, np.float32).astype(float)
    rows = x.reshape(-1, *shape[-2:])
    for i in range(shape[-2]):
        rows[:, i, rng.choice(shape[-1], i, replace=False)] *= 2.0**-30
    return x


def operands(rng, m, k, n, *, batch=(), rows=fractions, columns=fractions, moduli=15):
    """a[*batch, m, k] and b[*batch, k, n]."""
    a = rows(rng, (*batch, m, k), moduli)
    b = columns(rng, (*batch, n, k), moduli)
    return a, np.ascontiguousarray(np.swapaxes(b, -1, -2))


def complex_operands(rng, m, k, n, *, batch=(), rows=fractions, columns=fractions, moduli=15):
    """a[*batch, m, k] and b[*batch, k, n] whose 2k parts, real and imaginary in turn, are rows of a family."""
    a = rows(rng, (*batch, m, 2 * k), moduli)
    b = columns(rng, (*batch, n, 2 * k), moduli)
    a, b = (np.ascontiguousarray(x).view(np.complex128) for x in (a, b))
    return a, np.ascontiguousarray(np.swapaxes(b, -1, -2))


def problems(rng, count, m, k, n, *, moduli=15, families=FAMILIES, make=operands):
    """A batch of `count` products, every family in turn on both sides, and their names."""
    names = list(families)
    pairs = [(names[i % len(names)], names[rng.integers(len(names))]) for i in range(count)]
    batch = [make(rng, m, k, n, rows=families[x], columns=families[y], moduli=moduli) for x, y in pairs]
    a, b = (np.stack(side) for side in zip(*batch, strict=True))
    return a, b, pairs


def lower(rng, shape, n=None):
    """Rows that end at a place that moves on with them."""
    return np.where(
        np.arange(shape[-1]) * shape[-2] <= (np.arange(shape[-2])[:, None] + 1) * shape[-1], phi(1)(rng, shape), 0
    )


def upper(rng, shape, n=None):
    return lower(rng, shape)[..., ::-1, ::-1]


def banded(rng, shape, n=None):
    """Nonzeros around a place that moves on with the row, tiny ones among them."""
    distance = np.arange(shape[-1]) / shape[-1] - np.arange(shape[-2])[:, None] / shape[-2]
    return np.where(abs(distance) < 0.1, phi(2)(rng, shape), 0)


def in_parts(rng, shape, n=None):
    """Nonzeros in a few parts of k, those of neighbouring rows apart."""
    at = rng.random((*shape[:-1], 64)) < 0.05
    return np.where(at.repeat(-(-shape[-1] // 64), -1)[..., : shape[-1]], phi(1)(rng, shape), 0)


STRUCTURED = {f.__name__: f for f in (lower, upper, banded, in_parts)}
"""Rows that share only parts of k with columns, or none."""
