"""Products equal the definition in Python integers, bit for bit."""

import itertools
import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import oracle
from jax_ozaki import _moduli
from oracle import assert_same_bits

SIZES = [  # m, k, n: three products of a kind for every modulus count
    (1, 1, 1), (7, 31, 3), (16, 40, 16), (2, 3, 5), (33, 17, 1), (9, 8, 15), (1, 37, 40), (12, 2, 29),
]  # fmt: skip


@partial(jax.jit, static_argnums=2)
def dot(a, b, n):
    return jo.matmul(a, b, contract=jo.Contract.moduli(n))


def exact(row):
    return [Fraction(float(x)) if math.isfinite(x) else Fraction(0) for x in row]


def top(x):
    """The smallest e with |x| < 2^e."""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e + (abs(x) >= Fraction(2) ** e)


def test_the_tables_are_those_of_the_oracle():
    assert _moduli.MODULI == oracle.MODULI
    assert [_moduli.bound(n) for n in oracle.COUNTS] == [_moduli.Bound(*oracle.bound(n)) for n in oracle.COUNTS]


def test_logarithms_of_the_bounds():
    for n in oracle.COUNTS:
        mantissa, exponent = oracle.bound(n)
        h = mantissa * Fraction(2) ** exponent
        norm, product = _moduli.log_bound(n)
        assert 2 ** (norm - 2) < h**256 <= 2 ** (norm - 1)
        assert 2**product <= h**512 < 2 ** (product + 1)


@pytest.mark.parametrize("family", generators.FAMILIES)
def test_the_oracle_agrees_with_fractions(family):
    """The oracle's vectorised arithmetic against the formulas, literally."""
    rng = np.random.default_rng(0)
    for k, n in ((1, 2), (7, 15), (150, 5), (300, 20)):
        rows = generators.FAMILIES[family](rng, (4, k), n)
        stats = oracle.statistics(rows)
        scale = oracle.scales(stats, n)
        integers = oracle.quantize(rows, scale)
        for i, row in enumerate(map(exact, rows)):
            nonzero = [x for x in row if x]
            if not nonzero:
                assert [int(s[i]) for s in stats[:4]] == [0, 0, 0, 0]
                continue
            chunks = [[x for x in row[c : c + 128] if x] for c in range(0, k, 128)]
            tops = [max(map(top, chunk)) if chunk else None for chunk in chunks]
            emax = max(e for e in tops if e is not None)
            sumsq = sumabs = 0
            for chunk, e in zip(chunks, tops, strict=True):
                if chunk:
                    scaled = [math.ceil(abs(x) * Fraction(2) ** (16 - e)) for x in chunk]
                    sumsq += math.ceil(sum(x * x for x in scaled) / Fraction(4) ** (emax - e))
                    sumabs += math.ceil(sum(scaled) / Fraction(2) ** (emax - e))
            unit = max(x.denominator for x in nonzero)
            lsb = min(
                (abs(x * unit).numerator & -abs(x * unit).numerator).bit_length() - unit.bit_length() for x in nonzero
            )
            assert [int(s[i]) for s in stats[:4]] == [emax, lsb, sumsq, len(nonzero)]
            assert stats.sumabs[i] == sumabs
            if oracle.is_sentinel(scale[i]):
                continue
            mu = int(scale[i])
            assert list(integers[i]) == [round(x * Fraction(2) ** mu) for x in row]
            h, eh = oracle.bound(n)
            room = h * Fraction(2) ** eh - Fraction(math.isqrt(len(nonzero) - 1) + 1, 2)
            squared = sumsq * Fraction(4) ** (emax - 16)
            assert Fraction(4) ** mu * squared <= room**2
            # The next scale would be too large, or the row is exact as it is (room is rounded by 2^-30).
            assert mu == -lsb or Fraction(4) ** (mu + 1) * squared > room**2 * (1 - Fraction(1, 2**28))


@pytest.mark.parametrize("n", oracle.COUNTS)
def test_random_problems(n):
    """1,026 problems of every family with every modulus count."""
    rng = np.random.default_rng(n)
    for i in range(3):
        m, k, columns = SIZES[(3 * n + i) % len(SIZES)]
        a, b, pairs = generators.problems(rng, 18, m, k, columns, moduli=n)
        c = np.asarray(dot(a, b, n))
        for x, y, z, pair in zip(a, b, c, pairs, strict=True):
            assert_same_bits(z, oracle.product(x, y, n), f"{pair} {m, k, columns}, {n} moduli")


@pytest.mark.parametrize(
    ("k", "n", "family"),
    [
        (2**20, 3, "half rows"), (2**20, 4, "half rows"), (2**17 + 1, 5, "half rows"), (32000, 2, "half rows"), (2**20, 15, "tiny tail"),
        (2**16, 16, "fractions"), (2**16 + 1, 17, "phi=2"), (2**17, 20, "wide exponents"), (129, 15, "special values"), (1025, 2, "ties"),
    ],
)  # fmt: skip
def test_long_contractions(k, n, family):
    rng = np.random.default_rng(k)
    rows = generators.FAMILIES[family]
    a, b = generators.operands(rng, 2, k, 2, rows=rows, columns=rows, moduli=n)
    assert_same_bits(dot(a, b, n), oracle.product(a, b, n))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_constant_rows_do_not_wrap(n):
    """Rows and columns t + 1/2 + eps round up together: the norm bound must leave room for that."""
    longest = {2: 16000, 3: 2**16, 4: 2**16, 5: 2**16}[n]
    for k in (16, 1000, longest):
        h, eh = oracle.bound(n)
        t = math.floor(h * 2.0**eh / math.sqrt(k))
        values = np.maximum(np.arange(t - 4, t + 1), 0) + 0.5 + 2.0**-20
        rows = np.broadcast_to(values[:, None], (5, k))
        assert_same_bits(dot(rows, rows.T.copy(), n), oracle.product(rows, rows.T, n))


def test_integers_that_overflow_32_bits():  # case 8
    for k in (2**17 - 1, 2**17, 2**17 + 1, 2**20):
        x = np.full((4, k), -128.0)
        np.testing.assert_array_equal(jo.dot(x, x.T), np.full((4, 4), 16384.0 * k))


@pytest.mark.parametrize("data", ["fractions", "integers", "thirds"])
def test_two_hundred(data):  # case 1
    rng = np.random.default_rng(200)
    family = generators.FAMILIES[data]
    a, b = generators.operands(rng, 200, 200, 200, rows=family, columns=family)
    c = np.asarray(dot(a, b, 15))
    assert_same_bits(c[:40, :40], oracle.product(a[:40], b[:, :40], 15))
    if data == "integers":
        np.testing.assert_array_equal(c, a @ b)


def test_powers_of_two_move_through():  # case 4
    rng = np.random.default_rng(4)
    a, b = generators.operands(rng, 12, 30, 13)
    e, f = rng.integers(-250, 251, (12, 1)), rng.integers(-250, 251, (1, 13))
    scaled = jo.dot(np.ldexp(a, e), np.ldexp(b, f))
    assert_same_bits(scaled, np.ldexp(np.asarray(jo.dot(a, b)), e + f))


def test_graded_matrices():  # case 3
    """A D and D^-1 B, D = 10^linspace(0, -16): every error stays within the stated norms."""
    rng = np.random.default_rng(3)
    r, s = generators.operands(rng, 6, 40, 7)
    d = 10 ** np.linspace(0, -16, 40)
    a, b = r * d, s / d[:, None]
    c = np.asarray(jo.dot(a, b, contract=jo.Contract.normwise(2)))
    error = oracle.errors(c, a, b)
    norms = (oracle.integers(a) ** 2).sum(1)[:, None] * (oracle.integers(b) ** 2).sum(0)
    assert (error**2 * 2**104 <= 4 * 4 * norms).all()


def test_small_element_met_by_a_large_one():  # case 3
    a, b = np.array([[1, 2.0**-100]]), np.array([[0], [2.0**100]])
    assert jo.dot(a, b)[0, 0] == 1
    assert jo.dot(a, b, contract=jo.Contract.mantissa(53))[0, 0] == 0
    (why,) = jo.explain(a, b).splitlines()
    assert "row 0 spans 101 bits" in why and "summed as integers" in why


def test_odd_sizes_equal_the_padded_problem():  # case 7
    """Every pair of sizes meets in some m, k, n; offsets x[1:, 1:] are odd."""
    sizes = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33)
    rng = np.random.default_rng(7)
    a, b = generators.operands(rng, 34, 34, 34)

    for i, j in itertools.product(range(11), repeat=2):
        m, k, n = sizes[i], sizes[j], sizes[(i + j) % 11]
        x, y = a[1 : 1 + m, 1 : 1 + k], b[1 : 1 + k, 1 : 1 + n]
        padded_x, padded_y = np.zeros((34, 34)), np.zeros((34, 34))
        padded_x[:m, :k], padded_y[:k, :n] = x, y
        assert_same_bits(dot(x, y, 15), np.asarray(dot(padded_x, padded_y, 15))[:m, :n], f"{m, k, n}")


def test_slices_inside_a_program():  # case 7
    rng = np.random.default_rng(8)
    a, b = generators.operands(rng, 18, 34, 16)
    inside = jax.jit(lambda a, b: jo.dot(a[1:, 1:], b[1:, 1:]))(a, b)
    assert_same_bits(inside, oracle.product(a[1:, 1:], b[1:, 1:], 15))


def test_gram_matrices_are_symmetric():  # case 11
    rng = np.random.default_rng(11)
    x = rng.standard_normal((50, 60)) * 10 ** np.linspace(0, -8, 60)
    gram = np.asarray(jo.dot(x, x.T))
    assert_same_bits(gram, gram.T)
    eigenvalues = np.linalg.eigvalsh(gram)
    assert eigenvalues[0] >= -50 * 2.0**-52 * eigenvalues[-1]


def test_extreme_sums():  # case 12
    largest = np.finfo(np.float64).max
    terms = np.full((1, 128), largest / 128)
    assert jo.dot(terms, np.ones((128, 1)))[0, 0] == largest
    assert jo.dot(2 * terms, np.ones((128, 1)))[0, 0] == np.inf
    assert jo.dot(np.array([[1e200, -1e200]]), np.full((2, 1), 1e200))[0, 0] == 0
    assert jo.dot(np.array([[1e200, -1e200, 1e200]]), np.full((3, 1), -1e200))[0, 0] == -np.inf
    smallest = 2.0**-1074
    assert jo.dot(np.array([[smallest]]), np.array([[1.0]]))[0, 0] == smallest
    # Half of the smallest subnormal is a tie to even; a little more is not.
    halves = jo.dot(np.array([[smallest], [3 * smallest]]), np.array([[0.5, 0.5 + 2.0**-40, -0.5]]))
    assert_same_bits(halves, smallest * np.array([[0, 1, -0.0], [2, 2, -2]]))


def test_repeats_and_batches_give_the_same_bits():  # case 10
    rng = np.random.default_rng(10)
    a, b = generators.operands(rng, 1000, 24, 11, rows=generators.phi(2))
    first = np.asarray(jo.dot(a[:1], b))
    assert_same_bits(first, oracle.product(a[:1], b, 15))
    for rows in (2, 5, 64, 1000):
        assert_same_bits(np.asarray(jo.dot(a[:rows], b))[:1], first)
    mapped = jax.vmap(lambda row: jo.dot(row, b))(a[:64])
    looped = jax.lax.map(lambda row: jo.dot(row, b), a[:64])
    assert_same_bits(mapped, looped)
    assert_same_bits(np.asarray(mapped)[:1], first)
    repeated = [np.asarray(dot(a, b, 15)) for _ in range(20)]
    for c in repeated:
        assert_same_bits(c, repeated[0])
    assert jnp.array_equal(repeated[0][0], first[0])
