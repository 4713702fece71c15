"""The last rung in float64: both ways of the kernel, dense blocks and few outputs, give the CPU's bits."""

import jax
import numpy as np
import pytest

import jax_ozaki as jo
from jax_ozaki import _chains, _rungs, _stages
from last_rung import adversarial, sums
from layouts import stored
from oracle import assert_same_bits

ORDERS = [(a, b) for a in ("brk", "bkr") for b in ("brk", "bkr")]
SIZES = [(1, 300, 1500, 200), (3, 129, 97, 65), (2, 64, 4096, 130), (1, 7, 20001, 9), (1, 1100, 515, 70)]


def on_both(gpu, cpu, group, orders, a, b, rung):
    stages = _stages.by_platform()
    return [
        np.asarray(sums(stages[platform], group, orders, *jax.device_put((a, b, rung), device)))
        for platform, device in (("cuda", gpu), ("cpu", cpu))
    ]


@pytest.mark.parametrize("share", [0.002, 0.01, 0.5, 1])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_random_outputs(gpu, cpu, sizes, share):
    batch, m, k, n = sizes
    rng = np.random.default_rng(m)
    a, b = (np.stack(x) for x in zip(*(adversarial(rng, m, k, n) for _ in range(batch)), strict=True))
    rung = np.where(rng.random((batch, m, n)) < share, _rungs.SUM, 1).astype(np.uint8)
    for orders in ORDERS:
        x, y = (stored(z, "brk", order) for z, order in zip((a, b), orders, strict=True))
        found, expected = on_both(gpu, cpu, _chains.group(k), orders, x, y, rung)
        assert_same_bits(found, expected, f"{orders}")


def test_a_row_a_column_and_a_band(gpu, cpu):
    """Outputs whose rows and columns overlap in a part of k, in blocks that are full, empty and neither."""
    rng = np.random.default_rng(2)
    n = 700
    i, j = np.mgrid[:n, :n]
    a = np.where(j <= i, rng.standard_normal((n, n)), 0)
    b = np.where(i <= j, rng.standard_normal((n, n)), 0)
    rung = np.where((i == 5) | (j == 600) | ((i >= j) & (i - j < 100)), _rungs.SUM, 1).astype(np.uint8)[None]
    for orders in ORDERS:
        x, y = (stored(z[None], "brk", order) for z, order in zip((a, b), orders, strict=True))
        for group in (1, 2, _chains.group(n)):
            found, expected = on_both(gpu, cpu, group, orders, x, y, rung)
            assert_same_bits(found, expected, f"{orders}, groups of {group}")


@pytest.mark.parametrize("scaled", [5, 300])
def test_products_whose_rows_and_columns_are_scaled_inside(agree, scaled):
    """A D times D^-1 B, D over +-500 bits, for some rows or all."""
    rng = np.random.default_rng(3)
    m, k, n = 300, 1200, 260
    powers = rng.integers(-500, 501, k)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    a[:scaled], b[:, :scaled] = np.ldexp(a[:scaled], powers), np.ldexp(b[:, :scaled], -powers[:, None])
    agree(jo.matmul, a, b)
    _, report = jo.matmul(a, b, return_report=True)
    assert report.rungs[3] == min(scaled, m) * min(scaled, n)
    agree(lambda a, b: jo.einsum("km,nk->mn", a, b), a.T.copy(), b.T.copy())
