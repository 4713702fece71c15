"""The last rung as a float64 sum in one fixed order: its definition, its bound and what it leaves to integers."""

from fractions import Fraction

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
import ladder_oracle
import oracle
from jax_ozaki import Contract, _chain_reference, _chains, _ladder_reference, _rungs, _stages
from last_rung import adversarial, sums
from meshes import mesh, run
from oracle import assert_same_bits

HANDLERS = _stages.Handlers(lambda operand: 0)
DEFAULT = Contract.componentwise()


def test_the_order_has_room_in_the_contract():
    """Its roundings are at most c, the powers of 1 + u included."""
    for c in ("sqrt_k", "k", 2, 54, 55, 1e3):
        contract = Contract.componentwise(c)
        for k in [*range(1, 700), 1023, 1024, 4095, 4096, 4097, 2**14, 2**20 - 1, 2**24]:
            factor = contract.error_factor(k)
            group = contract.sum_group(k)
            assert group == ladder_oracle.chain_group(k, factor)
            if group:
                n = _chains.roundings(k)
                assert (1 + Fraction(n, 2**53)) * n + Fraction(1, 2**28) <= contract.sum_error_factor(k) <= factor
            else:
                assert contract.sum_error_factor(k) < 1 + k * 2.0**-38
    assert [DEFAULT.sum_group(k) for k in (100, 512, 1024, 4096, 2**14)] == [0, 8, 16, 32, 64]
    assert Contract.componentwise("k").sum_group(8) == 1
    assert Contract.componentwise(2).sum_group(4096) == Contract.exact().sum_group(4096) == 0
    assert (_chains.roundings(4096), Contract.componentwise(54).sum_group(4096)) == (54, 0)


def test_fma_rounds_once():
    rng = np.random.default_rng(1)
    n = 3000

    def spread(extent, centre=0):
        return np.ldexp(rng.standard_normal(n), centre + rng.integers(-extent, extent + 1, n))

    x, y, z = spread(40), spread(40), spread(40)
    z[::2] = (-x * y * (1 + rng.integers(-2, 3, n) * 2.0**-52))[::2]  # the product's lower half is the result
    ties = np.round(8 * spread(1)), np.round(8 * spread(1)), np.ldexp(1.0, rng.integers(-3, 120, n))
    small = spread(40, -520), spread(40, -520), spread(30, -1040)
    large = spread(2, 511), spread(2, 511), spread(2, 1020)
    zeros = np.where(x > 0, 0, x), y, np.where(y > 0, 0, z)
    for operands in ((x, y, z), ties, small, large, zeros):
        found = np.asarray(jax.jit(_chain_reference.fma)(*operands))
        for i in range(0, n, 7):
            a, b, c = (Fraction(v[i]) for v in operands)
            expected = oracle.round_to_float64(*ladder_oracle.integer_and_exponent(a * b + c))
            assert found[i] == expected, [v[i].hex() for v in operands]


@pytest.mark.parametrize("k", [4, 9, 65, 530, 1300])
def test_handlers_reference_and_oracle_agree(k):
    rng = np.random.default_rng(k)
    m, n, group = 7, 5, _chains.group(k)
    a, b = adversarial(rng, m, k, n)
    rung = np.full((1, m, n), _rungs.SUM, np.uint8)
    rung[0, 6, 4] = 1
    expected = np.full((1, m, n), 7.0)
    left = 0
    for i, j in np.argwhere(rung[0] == _rungs.SUM):
        total = ladder_oracle.chain_sum(a[i], b[j], group)
        left += total is None
        expected[0, i, j] = ladder_oracle.windowed_sum(a[i], b[j]) if total is None else total
    assert left > 2
    for stages in (HANDLERS, _ladder_reference):
        assert_same_bits(sums(stages, group, ("brk", "brk"), a[None], b[None], rung), expected, str(stages))
    strided = sums(HANDLERS, group, ("bkr", "bkr"), a.T[None].copy(), b.T[None].copy(), rung)
    assert_same_bits(strided, expected, "strided")


@pytest.mark.parametrize("rungs", [0, 1, 256])
def test_a_stage_refuses_what_is_no_set_of_rungs(rungs):
    """Bits of a tile's word that say other things, and the rung of the padding, would reach memory of others."""
    operands = np.ones((1, 2, 3)), np.ones((1, 3, 3))
    with pytest.raises(jax.errors.JaxRuntimeError, match="rungs"):
        sums(HANDLERS, 1, ("brk", "brk"), *operands, np.ones((1, 2, 3), np.uint8), rungs=rungs).block_until_ready()


def test_tiles_and_parts_without_nonzeros():
    """Triangular operands whose outputs have products in few parts of k, in several tiles, and odd sizes."""
    rng = np.random.default_rng(3)
    m, k, n = 131, 1500, 260
    rows, columns, along = np.arange(m)[:, None] * 10, np.arange(n)[:, None] * 5, np.arange(k)
    a = np.where(along <= rows + 200, rng.standard_normal((m, k)), 0)
    b = np.where(along >= columns, rng.standard_normal((n, k)), -0.0)
    rung = np.where(rng.random((1, m, n)) < 0.2, _rungs.SUM, 1).astype(np.uint8)
    c = np.asarray(sums(HANDLERS, _chains.group(k), ("brk", "bkr"), a[None], b.T[None].copy(), rung))[0]
    assert (c[rung[0] == 1] == 7).all()
    whole = np.flatnonzero(rung[0] == _rungs.SUM)
    for i, j in zip(*np.unravel_index(whole[:: len(whole) // 40], (m, n)), strict=True):
        total = ladder_oracle.chain_sum(a[i], b[j], _chains.group(k))
        assert c[i, j] == (ladder_oracle.windowed_sum(a[i], b[j]) if total is None else total)


@pytest.mark.parametrize(("k", "c"), [(9, "k"), (45, "k"), (601, "sqrt_k"), (2999, "sqrt_k"), (1025, 60)])
def test_products_keep_the_contract(k, c):
    """A D times D^-1 B, D over +-500 bits: all outputs on the last rung, against exact fractions."""
    contract = Contract.componentwise(c)
    assert contract.sum_group(k) > 0
    rng = np.random.default_rng(k)
    m, n = 6, 5
    powers = rng.integers(-500, 501, k)
    a, b = np.ldexp(rng.standard_normal((m, k)), powers), np.ldexp(rng.standard_normal((k, n)), -powers[:, None])
    a[0] *= np.sign(a[0] * b[:, 0])  # no cancellation
    found, report = jo.matmul(a, b, contract=contract, return_report=True)
    assert report.rungs.tolist() == [0, 0, 0, m * n]
    assert float(report.achieved) == contract.sum_error_factor(k) <= contract.error_factor(k)
    worst = 0
    for i, j in np.ndindex(m, n):
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
        error = abs(Fraction(float(found[i, j])) - sum(terms))
        worst = max(worst, error * 2**53 / sum(map(abs, terms)))
    assert 0 < worst <= Fraction(float(report.achieved))
    expected, rung = ladder_oracle.product(a, b, contract.error_factor(k), contract.modulus_count(k))
    assert (rung == 4).all()
    assert_same_bits(found, expected)
    assert_same_bits(jo.matmul(b.T, a.T, contract=contract).T, found, "transposed")


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x")], ids=str)
def test_shards_of_k_are_added_in_its_order(axes):
    rng = np.random.default_rng(8)
    m, k, n = 5, 520, 6
    powers = rng.integers(-500, 501, k)
    a, b = np.ldexp(rng.standard_normal((m, k)), powers), np.ldexp(rng.standard_normal((k, n)), -powers[:, None])
    assert jo.matmul(a, b, return_report=True)[1].rungs.tolist() == [0, 0, 0, m * n]
    c, text = run(jo.matmul, mesh(x=2, y=2), (P(None, axes), P(axes)), (a, b))
    assert "all-gather" in text
    assert_same_bits(c, jo.matmul(a, b))


def test_texts_name_the_sums():
    rng = np.random.default_rng(7)
    powers = rng.integers(-500, 501, 600)
    a, b = np.ldexp(rng.standard_normal((3, 600)), powers), np.ldexp(rng.standard_normal((600, 2)), -powers[:, None])
    assert "6 of 6 outputs summed in float64" in jo.explain(a, b)
    assert "6 of 6 outputs summed as integers" in jo.explain(a, b, Contract.componentwise(2))
    assert jo.plan(9, 9, 600).rungs[-1] == "float64 sums in a fixed order"
    assert jo.plan(9, 9, 60).rungs[-1] == "integer sums"
