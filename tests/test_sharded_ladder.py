"""Certified products over a mesh of fake devices: every rung with the bits of one device, and what each sends."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from compiled import collectives, unconditional
from generators import FAMILIES, few_tiny, fractions, graded, operands, phi, problems
from meshes import mesh, put, run
from oracle import assert_same_bits

DEFAULT, EXACT = jo.Contract.componentwise(), jo.Contract.exact()


def reversed_graded(*args):
    """Columns whose products with ``graded`` rows are all small: those need the last rung."""
    return graded(*args)[..., ::-1]


@pytest.mark.parametrize("contract", [DEFAULT, EXACT], ids=str)
def test_rows_and_columns_stay_local(contract):
    fn = partial(jo.matmul, contract=contract)
    a, b = operands(np.random.default_rng(0), 16, 300, 24, rows=phi(2), columns=phi(2))
    specs = P("x"), P(None, "y")
    c, text = run(fn, mesh(x=2, y=2), specs, (a, b), P("x", "y"))
    assert not collectives(text)
    assert_same_bits(c, fn(a, b))
    pair = put(mesh(x=2, y=2), specs, (a, b))
    report, whole = (fn(*arrays, return_report=True)[1] for arrays in (pair, (a, b)))
    assert report.rungs.tolist() == whole.rungs.tolist() and float(report.achieved) == float(whole.achieved)


# Specs of (batch, m, k), (batch, k, n) and the result on a mesh x = 2, y = 4, and the collectives that always run: the
# statistics' maximum, sum and rounded elements, the coarse magnitudes, the limbs; where the result is scattered, flags of tiles.
CONTRACTED = {
    "k over two axes": (P(None, None, ("x", "y")), P(None, ("x", "y")), None, {"all-reduce": 5}),
    "m and k, result over both": (
        P(None, "x", "y"),
        P(None, "y"),
        P(None, "x", "y"),
        {"all-reduce": 5, "reduce-scatter": 3},
    ),
    "k, result over batch": (P(None, None, "y"), P(None, "y"), P("y"), {"all-reduce": 5, "reduce-scatter": 3}),
}


@pytest.mark.parametrize("layout", CONTRACTED)
def test_every_rung_of_a_sharded_contraction(layout):
    *specs, out, expected = CONTRACTED[layout]
    rng = np.random.default_rng(1)
    a, b, _ = problems(rng, 20, 6, 8 * 128, 8)
    a[0], b[0] = graded(rng, (6, 8 * 128)), reversed_graded(rng, (8, 8 * 128)).T
    c, text = run(jo.matmul, mesh(x=2, y=4), specs, (a, b), out)
    assert unconditional(text) == expected
    assert collectives(text)["all-gather"] == 2  # in the condition of the last rung
    whole, report = jo.matmul(a, b, return_report=True)
    assert (report.rungs > 0).all()
    assert_same_bits(c, whole)


def test_exact():
    a, b, _ = problems(np.random.default_rng(2), 2 * len(FAMILIES), 6, 4 * 140, 8)
    fn = partial(jo.matmul, contract=EXACT)
    c, text = run(fn, mesh(), (P(None, None, "x"), P(None, "x")), (a, b), P(None, None, "x"))
    assert not {"all-gather", "all-to-all"} & unconditional(text).keys()
    assert_same_bits(c, fn(a, b))


def test_devices_differ_in_the_rungs_that_they_need():
    """m over x: one row of devices has outputs of the last rung, the other none, and enters no condition."""
    rng = np.random.default_rng(3)
    a, b = operands(rng, 8, 4 * 128, 6, columns=reversed_graded)
    a[:4] = graded(rng, (4, 4 * 128))
    c, _ = run(jo.matmul, mesh(x=2, y=4), (P("x", "y"), P("y")), (a, b))
    assert_same_bits(c, jo.matmul(a, b))
    rungs = [jo.matmul(x, b, return_report=True)[1].rungs for x in (a[:4], a[4:])]
    assert [x.tolist() for x in rungs] == [[0, 0, 0, 24], [24, 0, 0, 0]]


def test_magnitudes_of_parts_of_k_that_shards_cut():
    """Of the blocks of 64 k every fourth counts, wherever the shards begin."""
    a, b = operands(np.random.default_rng(5), 3, 4 * 17_500, 4, rows=phi(2), columns=phi(2))
    c, text = run(jo.matmul, mesh(), (P(None, "x"), P("x")), (a, b))
    assert unconditional(text) == {"all-reduce": 5, "collective-permute": 2}
    assert_same_bits(c, jo.matmul(a, b))


@pytest.mark.parametrize("out", [P(), P("x")], ids=str)
def test_elements_that_fewer_moduli_round_are_counted_over_all_shards(out):
    a, b = operands(np.random.default_rng(9), 12, 4 * 515, 8, rows=few_tiny, columns=few_tiny)
    c, _ = run(jo.matmul, mesh(), (P(None, "x"), P("x")), (a, b), out)
    assert_same_bits(c, jo.matmul(a, b))


def test_blocks():
    a, b, _ = problems(np.random.default_rng(6), len(FAMILIES), 6, 4 * 256, 8)
    with jo.default_workspace_bytes(120_000):
        c, text = run(jo.matmul, mesh(), (P(None, None, "x"), P(None, "x")), (a, b), P(None, None, "x"))
    assert "while" in text
    assert_same_bits(c, jo.matmul(a, b))


def test_certified_complex_products():
    rng = np.random.default_rng(7)
    a, b = (phi(2)(rng, shape) + 1j * phi(2)(rng, shape) for shape in ((4, 4 * 64), (4 * 64, 6)))
    c, text = run(jo.matmul, mesh(), (P(None, "x"), P("x")), (a, b))
    assert "all-gather" not in unconditional(text)
    assert_same_bits(c, jo.matmul(a, b))


@pytest.mark.parametrize(("specs", "count"), [((P("x"), P()), 4), ((P(None, "x"), P("x")), 8)])
def test_gradients(specs, count):
    rng = np.random.default_rng(8)
    a, b, w = fractions(rng, (512, 1024)), phi(2)(rng, (1024, 24)), fractions(rng, (512, 24))

    def gradients(a, b, w):
        return jax.vjp(jo.matmul, a, b)[1](w)

    actual, text = run(gradients, mesh(x=count), (*specs, P()), (a, b, w))
    assert "all-gather" not in unconditional(text)
    for x, expected in zip(actual, gradients(a, b, w), strict=True):
        assert_same_bits(x, expected)
