"""Extents beyond 16 and 32 bits, long contractions, and blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import ladder_oracle
import oracle
from jax_ozaki import Contract
from oracle import assert_same_bits

GiB = 1 << 30


def test_more_than_65535_batches(agree):
    rng = np.random.default_rng(0)
    a, b = (generators.wide_exponents(rng, (70000, 3, 3)) for _ in range(2))
    a[69999, 1, 2], b[66000, 0, 1] = np.inf, np.nan
    agree(jo.matmul, a, b)


def test_two_mapped_axes_of_many_elements(agree):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((4, 65536, 2, 3)), rng.standard_normal((65536, 3, 2, 4))
    agree(jax.vmap(jax.vmap(jo.dot), (0, 3)), a, b)


def elements(rows, k):
    """Elements of [-1/2, 1/2) off every coarse grid, made from their index."""
    i = jax.lax.iota(jnp.uint64, rows)[:, None] * k + jax.lax.iota(jnp.uint64, k)
    i = (i + 1) * jnp.uint64(0x9E3779B97F4A7C15)
    i = (i ^ (i >> 29)) * jnp.uint64(0xBF58476D1CE4E5B9)
    return (i >> 11).astype(jnp.float64) * 2.0**-53 - 0.5


def test_operand_of_more_than_2_31_elements(gpu, cpu):
    rows, k, n = 2**25 + 8, 64, 8
    contract = Contract.moduli(10)
    memory = (gpu.memory_stats() or {}).get("bytes_limit", 0)
    if memory < 80 * GiB:
        pytest.skip(f"needs 80 GiB of device memory, {memory / GiB:.0f} GiB are there")
    with jax.default_device(gpu):
        a = jax.jit(lambda: elements(rows, k))()
    assert a.size > 2**31
    b = np.random.default_rng(2).standard_normal((k, n))
    with jo.default_workspace_bytes(40 * GiB):
        assert jo.plan(rows, n, k, contract=contract).blocks.m == rows  # in one piece: residues above 2^32 bytes
        dot = jax.jit(lambda a, b: jo.dot(a, b, contract=contract))
        c = dot(a, jax.device_put(b, gpu))
    edges = [0, 1, 2**24, 2**25 - 1, 2**25, rows - 1]
    sample = np.unique([*edges, *np.random.default_rng(3).integers(0, rows, 2000)])
    a_rows, c_rows = (np.asarray(x[sample]) for x in (a, c))
    assert_same_bits(c_rows, np.asarray(dot(*jax.device_put((a_rows, b), cpu))))
    assert_same_bits(c_rows[-6:], oracle.product(a_rows[-6:], b, 10))


def test_long_rows_of_extreme_residues(agree):
    """-1 has the residue p - 1 for every p: accumulators take their largest values."""
    k = 2**17 + 1
    a, b = -np.ones((3, k)), -np.ones((k, 2))
    a[1], a[2] = 1, generators.half_rows(np.random.default_rng(4), (1, k))[0]
    c = agree(jo.dot, a, b)
    assert (c[0] == k).all() and (c[1] == -k).all()
    assert_same_bits(c[2:], ladder_oracle.default_product(a[2:], b))


def test_contraction_of_2_20(agree):
    k = 2**20
    a, b = generators.operands(np.random.default_rng(5), 2, k, 2, rows=generators.phi(2), columns=generators.tiny_tail)
    c = agree(jo.dot, a, b)
    assert_same_bits(c[:1], ladder_oracle.default_product(a[:1], b))


@pytest.mark.parametrize(
    ("sizes", "budget", "axes"),
    [
        ((5, 20, 30, 40), 2**17, "b"),
        ((2, 150, 130, 700), 330_000, "bmnk"),
        ((1, 3, 2, 2**18 + 1), 500_000, "k"),
    ],
)
def test_blocks_change_no_bit(agree, sizes, budget, axes):
    batch, m, n, k = sizes
    contract = Contract.moduli(15)
    blocks = jo.plan(m, n, k, batch=batch, contract=contract, workspace_bytes=budget).blocks
    chosen = (blocks.batch, blocks.m, blocks.n, blocks.k)
    assert {axis for axis, block, size in zip("bmnk", chosen, sizes, strict=True) if block < size} == set(axes)

    rng = np.random.default_rng(k)
    a, b = generators.operands(rng, m, k, n, batch=(batch,), rows=generators.phi(2), columns=generators.tiny_tail)
    a[0, 1, 2], b[-1, 3, 0] = np.inf, np.nan

    def product(a, b):
        return jo.matmul(a, b, contract=contract)

    whole = agree(product, a, b)
    with jo.default_workspace_bytes(budget):
        assert_same_bits(agree(product, a, b, context="in blocks"), whole)
