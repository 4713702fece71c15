"""Certified products: the GPU gives the CPU's bits on a thousand random problems, on every rung."""

import itertools

import jax
import numpy as np
import pytest

import generators
import jax_ozaki as jo
from jax_ozaki import Contract, _ladder, _rungs, _stages
from jax_ozaki._operand import Operand
from layouts import LAYOUTS, stored

COUNT = 26
"""Problems a compiled shape."""

EDGES = (1, 2, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257, 384, 385, 400)
CONTRACTS = (
    *map(Contract.componentwise, ("sqrt_k", "k", 2, 1.001, 1e6, "sqrt_k", 3e10)),
    Contract.exact(),
)


def scaled_inside(rng, shape, n=None):
    """Rows x D with one D of powers of two for all: the columns of the other side have D^-1."""
    k = shape[-1]
    powers = np.random.default_rng(k).integers(-500, 501, k)
    return np.ldexp(rng.standard_normal(shape), powers)


def scaled_back(rng, shape, n=None):
    k = shape[-1]
    powers = np.random.default_rng(k).integers(-500, 501, k)
    return np.ldexp(rng.standard_normal(shape), -powers)


def cancelling(rng, shape, n=None):
    """Pairs of opposite elements, a few of them not quite."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 9, (*shape[:-1], 1))
    half = shape[-1] // 2
    x[..., half : 2 * half] = -x[..., :half]
    return np.where(rng.random(shape) < 0.01, x * (1 + 2.0**-40), x)


def blocks_of_zeros(rng, shape, n=None):
    """Rows that live on one of four parts of k: many outputs have no product at all."""
    part = np.arange(shape[-1]) * 4 // shape[-1]
    return np.where(part == rng.integers(0, 4, (*shape[:-1], 1)), rng.standard_normal(shape), 0)


def small_integers(rng, shape, n=None):
    return rng.integers(-128, 128, shape).astype(np.float64)


ADVERSARIAL = {f.__name__: f for f in (cancelling, blocks_of_zeros, small_integers)}
PAIRS = [(scaled_inside, scaled_back), (generators.graded, lambda *x: generators.graded(*x)[..., ::-1])]


def problems(rng, m, k, n, moduli):
    """A batch of products, the pairs first, then every family in turn on both sides."""
    batch = [generators.operands(rng, m, k, n, rows=x, columns=y) for x, y in PAIRS]
    families = generators.FAMILIES | ADVERSARIAL
    a, b, _ = generators.problems(rng, COUNT - len(PAIRS), m, k, n, moduli=moduli, families=families)
    first, second = (np.stack(side) for side in zip(*batch, strict=True))
    return np.concatenate([first, a]), np.concatenate([second, b])


def cases(count):
    rng = np.random.default_rng(1)

    def size():
        return int(rng.choice(EDGES) if rng.random() < 0.5 else rng.integers(1, 401))

    settings = zip(range(count), itertools.cycle(CONTRACTS), itertools.cycle(LAYOUTS))
    return [(seed, (size(), size(), size()), *rest) for seed, *rest in settings]


CASES = cases(40)


def decided(platform, contract):
    """The rung of every output, the worst certified ratios and the moduli that are needed, by a platform's stages."""
    stages = _stages.by_platform()[platform]

    def run(a, b):
        lhs, rhs = Operand(a, "brk"), Operand(b, "bkr")
        rows = (_ladder.certified(stages, _stages.Rows(x), contract) for x in (lhs, rhs))
        found = _ladder.decide(stages, lhs, rhs, *rows, contract)
        return found

    return jax.jit(run)


def test_enough_problems_few_shapes():
    assert len(CASES) * COUNT >= 1000
    assert {contract for _, _, contract, _ in CASES} == set(CONTRACTS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_random_problems(agree, case):
    seed, (m, k, n), contract, (lhs, rhs) = case
    a, b = problems(np.random.default_rng(seed), m, k, n, 15)
    a, b = (x if "b" in order else np.repeat(x[:1], COUNT, 0) for x, order in ((a, lhs), (b, rhs)))

    def product(x, y):
        return jo.einsum(f"{lhs},{rhs}->bmn", x, y, contract=contract)

    agree(product, stored(a, "bmk", lhs), stored(b, "bkn", rhs))


@pytest.mark.parametrize("sizes", [(129, 400, 257), (300, 1100, 200)], ids=str)
@pytest.mark.parametrize("contract", [Contract.componentwise("sqrt_k"), Contract.componentwise(1.5)], ids=str)
def test_the_same_rungs_for_the_same_reasons(gpu, cpu, sizes, contract):
    operands = problems(np.random.default_rng(7), *sizes, 15)
    on_gpu, on_cpu = (
        jax.tree.map(np.asarray, decided(platform, contract)(*jax.device_put(operands, device)))
        for platform, device in (("cuda", gpu), ("cpu", cpu))
    )
    jax.tree.map(np.testing.assert_array_equal, on_gpu, on_cpu)
    assert set(np.unique(on_cpu.rung[..., : sizes[2]])) == set(_rungs.RUNGS)


def needed(gpu, cpu, a, b):
    """The moduli that the first rung needs, the same by both platforms, as are those of the third and its scales."""
    contract = Contract.componentwise()
    on_gpu, on_cpu = (
        jax.device_get(decided(platform, contract)(*jax.device_put((a, b), device)).needs)
        for platform, device in (("cuda", gpu), ("cpu", cpu))
    )
    jax.tree.map(np.testing.assert_array_equal, on_gpu, on_cpu)
    return int(on_gpu.first[0])


@pytest.mark.parametrize("at", [0, 130, 4299])
def test_one_long_row_needs_more_moduli(agree, gpu, cpu, at):
    """Wherever it is among more tiles than a warp has lanes."""
    rng = np.random.default_rng(at)
    long, others = (rng.integers(-(2**30), 2**30, shape).astype(float) for shape in ((1, 4300, 20), (1, 20, 40)))
    short = np.floor(np.ldexp(long, -16))
    one = short.copy()
    one[:, at] = long[:, at]
    few = needed(gpu, cpu, short, others)
    assert needed(gpu, cpu, one, others) > few
    a, b = others.transpose(0, 2, 1), one.transpose(0, 2, 1)
    assert needed(gpu, cpu, a, b) > few
    agree(jo.matmul, one, others)
    agree(jo.matmul, a, b)


def test_moduli_of_a_batch(agree, gpu, cpu):
    """Long rows and long columns of different elements do not meet."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-(2**30), 2**30, shape).astype(float) for shape in ((5, 140, 30), (5, 30, 300)))
    shift = np.array([0, -4, -8, -12, -16])[:, None, None]
    a, b = np.floor(np.ldexp(a, shift)), np.floor(np.ldexp(b, shift[::-1]))
    agree(jo.matmul, a, b)
    assert needed(gpu, cpu, a, b) == max(needed(gpu, cpu, a[i : i + 1], b[i : i + 1]) for i in range(5))
    assert needed(gpu, cpu, a, b[::-1]) > needed(gpu, cpu, a, b)


@pytest.mark.parametrize("rows", generators.STRUCTURED)
def test_operands_that_share_parts_of_k(agree, rows):
    """Tiles skip what they do not share, on every rung."""
    rng = np.random.default_rng(13)
    for columns in generators.STRUCTURED.values():
        a, b = generators.operands(rng, 260, 2100, 390, rows=generators.STRUCTURED[rows], columns=columns)
        agree(jo.dot, a, b)


def test_a_long_contraction_on_every_rung(agree):
    """Planes over a part of k, and sums longer than a block of the kernels."""
    k = 2**17 + 100
    rng = np.random.default_rng(3)
    rows = np.stack(
        [f(rng, (1, k))[0] for f in (generators.phi(1), generators.phi(4), scaled_inside, generators.sparse)]
    )
    columns = np.stack([f(rng, (1, k))[0] for f in (generators.phi(1), scaled_back, generators.float32_values)])
    for contract in (Contract.componentwise("sqrt_k"), Contract.exact()):
        agree(lambda a, b, contract=contract: jo.dot(a, b, contract=contract), rows, columns.T.copy())


def test_exact_sums_that_cancel_almost_completely(agree):
    """Sums beyond the window: the terms that it cuts decide the result."""
    rng = np.random.default_rng(5)
    m, k = 70, 90
    x = generators.wide_exponents(rng, (m, k))
    a = np.concatenate([x, -x, np.ldexp(rng.standard_normal((m, 3)), rng.integers(-900, -700, (m, 3)))], axis=1)
    y = generators.fractions(rng, (k, 66))
    b = np.concatenate([y, y, rng.standard_normal((3, 66))])
    c = agree(lambda a, b: jo.dot(a, b, contract=Contract.exact()), a, b)
    assert (c != 0).all()
