"""The GPU gives the CPU's bits: over a thousand random problems of every layout, contract and family."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

import generators
import jax_ozaki as jo
import ladder_oracle
import oracle
from jax_ozaki import Contract, _ffi
from jax_ozaki._cli import info
from layouts import LAYOUTS, stored
from oracle import assert_same_bits

COUNT = 24
"""Problems a compiled shape: every family on the left once and more."""

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 383, 384, 385, 399, 400)
CONTRACTS = (
    *map(Contract.moduli, range(2, 21)),
    *map(Contract.mantissa, (53, 30, 62)),
    *map(Contract.normwise, (2, 1.01, "sqrt_k", "k")),
)


class Case(NamedTuple):
    seed: int
    sizes: tuple[int, int, int]  # m, k, n
    contract: Contract
    layout: tuple[str, str]

    def __str__(self):
        return f"{'x'.join(map(str, self.sizes))}-{self.contract}-{','.join(self.layout)}"


def cases(count):
    rng = np.random.default_rng(0)

    def size():
        return int(rng.choice(EDGES) if rng.random() < 0.5 else rng.integers(1, 401))

    settings = zip(range(count), itertools.cycle(CONTRACTS), itertools.cycle(LAYOUTS))
    return [Case(seed, (size(), size(), size()), contract, layout) for seed, contract, layout in settings]


CASES = cases(45)


def test_enough_problems_few_shapes():
    assert len(CASES) * COUNT >= 1000
    assert len(CASES) <= 60
    assert {case.contract for case in CASES} == set(CONTRACTS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_random_problems(agree, case):
    (m, k, n), (lhs, rhs) = case.sizes, case.layout
    moduli = case.contract.modulus_count(k)
    rng = np.random.default_rng(case.seed)
    a, b, families = generators.problems(rng, COUNT, m, k, n, moduli=moduli)
    a, b = (x if "b" in order else np.repeat(x[:1], COUNT, 0) for x, order in ((a, lhs), (b, rhs)))

    def product(x, y):
        return jo.einsum(f"{lhs},{rhs}->bmn", x, y, contract=case.contract)

    c = agree(product, stored(a, "bmk", lhs), stored(b, "bkn", rhs), context=f"of the families {families}")
    rows, columns = (np.unique([0, size - 1, rng.integers(size)]) for size in (m, n))
    assert_same_bits(c[:, rows][..., columns], oracle.product(a[:, rows], b[..., columns], moduli))


def test_every_pair_of_classes(agree):
    """Outputs of two-element rows over all classes of values."""
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0, -3.0, 1e308, 5e-324]
    rows = np.array(list(itertools.product(values, repeat=2)))
    c = agree(jo.matmul, rows, rows.T.copy())
    assert_same_bits(c, ladder_oracle.default_product(rows, rows.T))


def test_few_moduli_round_every_term_the_same_way(agree):
    """Rows that wrap where a scale forgets the rounding of its elements."""
    for n in (2, 3, 4):
        rng = np.random.default_rng(n)
        rows = generators.half_rows
        a, b = generators.operands(rng, 8, 4096, 8, rows=rows, columns=rows, moduli=n)
        c = agree(lambda x, y, n=n: jo.dot(x, y, contract=Contract.moduli(n)), a, b)
        assert_same_bits(c[:2, :2], oracle.product(a[:2], b[:, :2], n))


def test_the_module_covers_this_device(gpu):
    build = _ffi.build_info()
    assert build["cuda"], build["cuda_problem"]
    assert info.covers(gpu.compute_capability), (gpu.compute_capability, build["cuda_archs"])
