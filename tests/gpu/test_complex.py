"""complex128 on the GPU: the CPU's bits over a thousand random problems of every layout, contract and family."""

import itertools

import jax
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import oracle
from jax_ozaki import Contract, _stages
from layouts import LAYOUTS, stored
from oracle import assert_same_bits

COUNT = 44
"""Problems a compiled shape."""

EDGES = (1, 2, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300)
CONTRACTS = (*map(Contract.moduli, range(2, 21)), Contract.mantissa(53), *map(Contract.normwise, (2, 1.01, "k")))
CASES = [
    (seed, contract, layout) for seed, contract, layout in zip(range(24), itertools.cycle(CONTRACTS), itertools.cycle(LAYOUTS))
]  # fmt: skip


def test_enough_problems():
    assert len(CASES) * COUNT >= 1000
    assert {contract for _, contract, _ in CASES} == set(CONTRACTS)


@pytest.mark.parametrize(("seed", "contract", "layout"), CASES, ids=str)
def test_random_problems(agree, seed, contract, layout):
    rng = np.random.default_rng(seed)
    m, k, n = (int(rng.choice(EDGES) if rng.random() < 0.5 else rng.integers(1, 301)) for _ in range(3))
    moduli, (lhs, rhs) = contract.modulus_count(k, complex), layout
    a, b, families = generators.problems(rng, COUNT, m, k, n, moduli=moduli, make=generators.complex_operands)
    a, b = (x if "b" in order else np.repeat(x[:1], COUNT, 0) for x, order in ((a, lhs), (b, rhs)))

    def product(x, y):
        return jo.einsum(f"{lhs},{rhs}->bmn", x, y, contract=contract)

    c = agree(product, stored(a, "bmk", lhs), stored(b, "bkn", rhs), context=f"of the families {families}")
    rows, columns = (np.unique([0, size - 1]) for size in (m, n))
    assert_same_bits(c[:, rows][..., columns], oracle.complex_product(a[:, rows], b[..., columns], moduli))


@pytest.mark.parametrize("sizes", [(3, 513, 5, 17), (2, 5000, 40, 18), (300, 1025, 260, 2), (1, 70001, 2, 15)], ids=str)
def test_long_contractions(agree, sizes):
    """Residues end in padding of their own length, not of the parts'."""
    m, k, n, moduli = sizes
    a, b = generators.complex_operands(np.random.default_rng(k), m, k, n, rows=generators.phi(1), moduli=moduli)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
        c = agree(lambda x, y: jo.dot(x, y, contract=Contract.moduli(moduli)), x, y)
    assert_same_bits(c[:1, :1], oracle.complex_product(a[:1], b[:, :1], moduli))
    turned = agree(lambda x, y: jo.dot(x.T, y.T, contract=Contract.moduli(moduli)), a.T.copy(), b.T.copy())
    assert_same_bits(turned, c)


@pytest.mark.parametrize("moduli", [2, 3, 4, 8, 12, 13, 15, 16, 17, 18, 20])
def test_strassen(agree, monkeypatch, moduli):
    """Quarters of odd sizes, results of few bits, zeros and non-finite ones beside long ones."""
    monkeypatch.setattr(_stages.by_platform()["cuda"], "_strassen", "always")
    rng = np.random.default_rng(moduli)
    m, k, n = (int(size) for size in rng.integers(1, 201, 3))
    lhs, rhs = LAYOUTS[moduli % len(LAYOUTS)]
    count = len(generators.FAMILIES)
    a, b, families = generators.problems(rng, count, m, k, n, moduli=moduli, make=generators.complex_operands)

    def product(x, y):
        return jo.einsum(f"{lhs},{rhs}->bmn", x, y, contract=Contract.moduli(moduli))

    a, b = (x if "b" in order else np.repeat(x[:1], count, 0) for x, order in ((a, lhs), (b, rhs)))
    c = agree(product, stored(a, "bmk", lhs), stored(b, "bkn", rhs), context=f"of the families {families}")
    assert_same_bits(c[:, :1, :1], oracle.complex_product(a[:, :1], b[..., :1], moduli))


def test_every_pair_of_classes(agree):
    values = [np.nan, np.inf, -np.inf, 0.0, 2.0, -3.0, 1e308, 5e-324]
    rows = np.array([complex(*x) for x in itertools.product(values, repeat=2)])[:, None]
    contract = Contract.mantissa(53)
    c = agree(lambda x, y: jo.matmul(x, y, contract=contract), rows, rows.T.copy())
    assert_same_bits(c, oracle.complex_product(rows, rows.T, contract.modulus_count(1, complex)))
    agree(jo.matmul, rows, rows.T.copy())  # under the default contract


def test_blocks_prepared_mixed_and_derivatives(agree):
    a, b = generators.complex_operands(np.random.default_rng(1), 70, 400, 90, rows=generators.phi(2))
    contract = Contract.normwise(2)

    def product(x, y):
        return jo.dot(x, y, contract=contract)

    def in_blocks(x, y):
        with jo.default_workspace_bytes(2_000_000):
            return product(x, y)

    whole = agree(product, a, b)
    assert_same_bits(agree(in_blocks, a, b), whole)
    assert_same_bits(agree(lambda x, y: jo.matmul(jo.prepare(x, "lhs", contract), y), a, b), whole)
    agree(product, a.real, b)
    agree(product, a, b.imag)
    agree(lambda x, y, t: jax.vjp(product, x, y)[1](t), a, b, whole)
