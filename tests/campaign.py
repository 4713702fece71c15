"""The campaign for certified contracts: products of adversarial operands, each checked in exact arithmetic.

    python tests/campaign.py [products]      (make campaign)

Under ``componentwise`` the measured error is at most the reported certificate, and that at most the contract's c;
under ``exact`` every output is the correctly rounded true value.
"""

import collections
import itertools
import sys
import time
from fractions import Fraction

import jax
import numpy as np

import jax_ozaki as jo
import oracle
from jax_ozaki import Contract

M, N = 3, 4
LENGTHS = (1, 6, 19, 44, 601)
CONTRACTS = (*map(Contract.componentwise, ("sqrt_k", "k", 1.5)), Contract.exact())


def normal(rng, shape):
    return rng.standard_normal(shape) * rng.uniform(1, 2, (*shape[:-1], 1))


def spread(rng, shape, phi):
    return (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape)) * rng.uniform(1, 2, (*shape[:-1], 1))


def phis(rng, shape):
    """Products of one batch have one phi each, 0 to 8."""
    phi = 8 * rng.random((shape[0], 1, 1))
    return spread(rng, shape, phi)


def both(family):
    return lambda rng, a, b: (family(rng, a), family(rng, b))


def powers(rng, shape, extent):
    return rng.integers(-extent, extent + 1, shape)


def graded_rows(rng, a, b):
    return (np.ldexp(normal(rng, s), powers(rng, (*s[:2], 1), 200)) for s in (a, b))


def graded_inner(rng, a, b):
    """Falling along k in both operands, or in one of them."""
    down = -np.minimum(rng.integers(0, 20, (a[0], 1, 1)) * np.arange(a[2]), 900)
    return np.ldexp(normal(rng, a), down), np.ldexp(normal(rng, b), rng.integers(-1, 2, (a[0], 1, 1)) * down)


def scaled_inner(rng, a, b):
    """A D and D^-1 B, D = 2^e with |e| up to 500."""
    e = powers(rng, (a[0], 1, a[2]), 500)
    return np.ldexp(normal(rng, a), e), np.ldexp(normal(rng, b), -e)


def cancelling(rng, a, b):
    """The second half of every row repeats the first with the other sign, but for some last bits."""
    x, y = normal(rng, a), normal(rng, b)
    half = a[2] // 2
    x[..., half : 2 * half] = -x[..., :half] * (1 + 2.0**-52 * rng.integers(-2, 3, x[..., :half].shape))
    y[..., half : 2 * half] = y[..., :half]
    return x, y


def blocks_of_scales(rng, a, b):
    scale = np.repeat(powers(rng, (a[0], 1, -(-a[2] // 4)), 120), 4, axis=-1)[..., : a[2]]
    other = np.repeat(powers(rng, (a[0], 1, -(-a[2] // 4)), 120), 4, axis=-1)[..., : a[2]]
    return np.ldexp(normal(rng, a), scale), np.ldexp(normal(rng, b), other)


def planted_zeros(rng, a, b):
    """Whole outputs are sums of zeros, beside elements of any scale."""
    here = rng.random((*a[:2], a[2])) < 0.5
    there = rng.random((*b[:2], b[2])) < 0.5
    there[:, 0] = ~here[:, 0]
    return (np.where(at, np.ldexp(normal(rng, s), powers(rng, s, 60)), 0) for at, s in ((here, a), (there, b)))


def integers(rng, a, b):
    extent = 2.0 ** rng.integers(1, 53, (a[0], 1, 1))
    return (np.rint(extent * rng.uniform(-1, 1, s)) for s in (a, b))


def subnormals(rng, a, b):
    tiny = np.ldexp(rng.integers(-(2**40), 2**40, a).astype(float), -1074)
    return np.ldexp(tiny, rng.integers(0, 30, (*a[:2], 1))), np.ldexp(normal(rng, b), powers(rng, b, 30))


def near_overflow(rng, a, b):
    large = np.finfo(float).max * rng.uniform(0.5, 1, a) * rng.choice([-1, 1], a)
    return large, np.ldexp(normal(rng, b), rng.integers(-30, 2, b))


def outliers(rng, a, b):
    """A few elements far above the others."""
    return (np.ldexp(normal(rng, s), np.where(rng.random(s) < 0.1, rng.integers(20, 300, s), 0)) for s in (a, b))


def float32_values(rng, a, b):
    return normal(rng, a).astype(np.float32).astype(float), normal(rng, b)


FAMILIES = {
    "normal": both(normal),
    "phi 0..8": both(phis),
    "graded rows and columns": graded_rows,
    "graded inner": graded_inner,
    "A D, D^-1 B": scaled_inner,
    "cancelling": cancelling,
    "blocks of scales": blocks_of_scales,
    "planted zeros": planted_zeros,
    "integers": integers,
    "subnormals": subnormals,
    "near overflow": near_overflow,
    "outliers": outliers,
    "float32 values": float32_values,
}


def run(contract):
    """Batches of products and their reports, one a product."""
    return jax.jit(jax.vmap(lambda a, b: jo.matmul(a, b, contract=contract, return_report=True)))


def operands(family, count, k, rng):
    a, b = FAMILIES[family](rng, (count, M, k), (count, N, k))
    return np.asarray(a), np.ascontiguousarray(np.swapaxes(np.asarray(b), 1, 2))


def integer_operands(a, b):
    """Both as integers, and the exponent of their unit: a b = (x y) 2^exponent."""
    scaled, exponent = [], 0
    for x in (a, b):
        significand, e = oracle.decompose(x)
        unit = int(e[significand != 0].min(initial=0))
        scaled.append(significand.astype(object) << np.where(significand != 0, e - unit, 0))
        exponent += unit
    return *scaled, exponent


_LARGEST = Fraction(np.finfo(float).max) * (1 + Fraction(1, 2**54))  # what rounds to infinity


def measure(c, a, b):
    """The largest error of a product's outputs in u |A||B|, less one rounding in the subnormal range; infinite where a
    finite output is not."""
    x, y, exponent = integer_operands(a, b)
    product, magnitude = x @ y, abs(x) @ abs(y)
    unit, worst = Fraction(2) ** exponent, Fraction(0)
    for value, exact, bound in zip(c.flat, product.flat, magnitude.flat, strict=True):
        if not np.isfinite(value):
            if abs(exact) * unit < _LARGEST or (value > 0) != (exact > 0):
                return np.inf
            continue
        error = abs(Fraction(value) - exact * unit) - Fraction(1, 2**1075)
        if error > 0:
            worst = max(worst, error * 2**53 / (bound * unit)) if bound else np.inf
    return worst


def check(contract, family, count, k, rng, compiled):
    """Violations among ``count`` products, and the largest measured/certificate."""
    a, b = operands(family, count, k, rng)
    c, report = jax.device_get(compiled(a, b))
    limit = contract.error_factor(k)
    violations, worst, rungs = 0, 0.0, report.rungs.sum(0)
    for i in range(count):
        if contract.kind == "exact":
            x, y, exponent = integer_operands(a[i], b[i])
            expected = np.vectorize(lambda t, e=exponent: oracle.round_to_float64(t, e), otypes=[float])(x @ y)
            violations += bool((oracle.bits(c[i]) != oracle.bits(expected)).any())
            continue
        measured, certificate = measure(c[i], a[i], b[i]), float(report.achieved[i])
        violations += not (measured <= certificate <= limit)
        worst = max(worst, float(measured) / certificate)
    return violations, worst, rungs


def campaign(products, seed=0, batch=250, lengths=LENGTHS, contracts=CONTRACTS):
    """Checks at least ``products`` products; prints a line a family and returns (count, violations)."""
    rng = np.random.default_rng(seed)
    compiled = {contract: run(contract) for contract in contracts}
    kinds = list(itertools.product(FAMILIES, contracts, lengths))
    rounds = -(-products // (batch * len(kinds)))
    found = collections.defaultdict(lambda: [0, 0, 0.0, np.zeros(4, np.int64)])
    for family, contract, k in kinds * rounds:
        violations, worst, rungs = check(contract, family, batch, k, rng, compiled[contract])
        entry = found[family]
        entry[0] += batch
        entry[1] += violations
        entry[2] = max(entry[2], worst)
        entry[3] += rungs
    print(f"{'family':26}{'products':>9}{'violations':>11}{'measured/certificate':>21}   outputs by rung")
    for family, (count, violations, worst, rungs) in found.items():
        print(f"{family:26}{count:9}{violations:11}{worst:21.3f}   {' '.join(map(str, rungs))}")
    return sum(entry[0] for entry in found.values()), sum(entry[1] for entry in found.values())


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    count, violations = campaign(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    print(f"{count} products, {violations} violations, {time.perf_counter() - start:.0f} s")
    sys.exit(violations > 0)
