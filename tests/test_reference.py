"""The FFI handlers and the pure JAX reference agree with each other and with the oracle, stage by stage."""

import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import generators
import jax_ozaki as jo
import oracle
from compiled import jit_stages
from jax_ozaki import _moduli, _reference, _stages
from jax_ozaki._operand import Operand
from jax_ozaki._plan import Blocks, padded_k
from meshes import mesh, put
from oracle import assert_same_bits

HANDLERS = _stages.Handlers(lambda operand: 0)
ORDERS = ["brk", "bkr", "rbk", "kbr"]
COUNTS = [2, 3, 9, 15, 16, 17, 20]


def in_order(x, order):
    """x[b, r, k] with its axes in another order in memory."""
    return np.ascontiguousarray(np.transpose(x, ["brk".index(axis) for axis in order]))


@partial(jit_stages, static_argnums=(1, 2))
def quantize(stages, order, n, x):
    operand = Operand(x, order)
    scale, table = stages.stats(operand, n)
    return (*stages.quantize(operand, n), scale, table, stages.residues(operand, scale, n))


@jit_stages
def grouped_mma(stages, a, b):
    return stages.grouped_mma(a, b)


@partial(jit_stages, static_argnums=(1,))
def combine(stages, n, v, mu, nu, a, b):
    return stages.combine(v, mu, nu, Operand(a, "brk"), Operand(b, "brk"), n)


@partial(jax.jit, static_argnums=(0, 1, 2))  # the definition optimized, too
def product(stages, blocks, n, a, b):
    return _stages.product(stages, *(_stages.Rows(Operand(x, "brk")) for x in (a, b)), n, blocks, budget=1 << 40)


def moduli_column(n):
    return np.array(oracle.MODULI[:n]).reshape(n, 1, 1)


def rows_of(n, k, rng):
    """Rows of every family, as one batch of two."""
    rows = np.concatenate([family(rng, (4, k), n) for family in generators.FAMILIES.values()])
    return rows.reshape(2, -1, k)


@pytest.mark.parametrize("stages", [HANDLERS, _reference], ids=["handlers", "reference"])
@pytest.mark.parametrize(("n", "k"), [(n, k) for n in COUNTS for k in (37, 520)])
def test_quantize(stages, n, k):
    x = rows_of(n, k, np.random.default_rng(n))
    order = ORDERS[COUNTS.index(n) % len(ORDERS)] if k == 37 else ORDERS[(COUNTS.index(n) + 1) % len(ORDERS)]
    residues, scale, table, stats_scale, stats_table, again = map(
        np.asarray, quantize(stages, order, n, in_order(x, order))
    )

    expected = oracle.statistics(x)
    expected_scale = oracle.scales(expected, n)
    assert scale.dtype == np.int32
    np.testing.assert_array_equal(scale, expected_scale)
    rounded = np.where((expected_scale < -expected.lsb) & (expected.flags == 0), expected.nnz, 0)
    np.testing.assert_array_equal(table, np.stack([*expected, rounded, oracle.occupancy(x).astype(np.int64)], -1))
    np.testing.assert_array_equal(stats_scale, scale)
    np.testing.assert_array_equal(stats_table, table)

    assert residues.shape == (2, n, x.shape[1], padded_k(k))
    assert not residues[..., k:].any()
    integers = oracle.quantize(x, expected_scale)
    p = moduli_column(n)
    want = (integers[:, None] % p.astype(object)).astype(np.int64)
    for found in (residues, again):
        found = found[..., :k].astype(np.int64)
        np.testing.assert_array_equal(found % p, want)
        assert (found <= p).all()


@pytest.mark.parametrize("stages", [HANDLERS, _reference], ids=["handlers", "reference"])
@pytest.mark.parametrize(
    ("n", "m", "k", "columns"),
    [(2, 3, 16, 5), (15, 17, 48, 33), (20, 1, 160, 16), (3, 2, 2**17 + 32, 2), (15, 70, 80, 66)],
)
def test_grouped_mma(stages, n, m, k, columns):
    rng = np.random.default_rng(k)
    p = moduli_column(n)
    top = np.minimum(p, 255)  # p itself stands for 0; 256 does not fit
    a, b = (rng.integers(0, top, (2, n, rows, k), endpoint=True, dtype=np.uint8) for rows in (m, columns))
    a[0], b[0] = top, top  # the largest accumulator
    v = np.asarray(grouped_mma(stages, a, b))
    assert v.shape == (2, n, m, -(-columns // 16) * 16)
    x = a.astype(np.int64) @ np.swapaxes(b, -1, -2).astype(np.int64)
    inverses = np.array([pow(math.prod(oracle.MODULI[:n]) // q, -1, q) for q in oracle.MODULI[:n]]).reshape(n, 1, 1)
    np.testing.assert_array_equal(v[..., :columns] % p, x % p * inverses % p)
    assert (v[..., :columns] <= p).all()


@pytest.mark.parametrize("stages", [HANDLERS, _reference], ids=["handlers", "reference"])
@pytest.mark.parametrize("n", oracle.COUNTS)
def test_combine(stages, n):
    """X up to the bound on both sides, ties of the rounding, and every exponent."""
    rng = np.random.default_rng(n)
    product = math.prod(oracle.MODULI[:n])
    largest = product * 127 // 256
    x = [0, 1, -1, largest, -largest, largest - 1, 1 - largest]
    # q of the reconstruction is decided near multiples of P / p_i.
    x += [
        s * (product // p * j + d)
        for p in oracle.MODULI[:n]
        for j in (1, p // 3, p // 2 - 2)
        for d in (-1, 0, 1)
        for s in (1, -1)
    ]
    for width in range(54, product.bit_length() - 2):
        odd = 2**52 + int(rng.integers(2**52))
        x += [s * ((2 * odd + 1 << width - 54) + d) for d in (-1, 0, 1) for s in (1, -1)]
    x += [int(rng.integers(-(2**62), 2**62)) * largest >> 62 for _ in range(200)]
    x = np.array([v for v in x if abs(v) <= largest], object)
    x = np.concatenate([x, np.zeros(-len(x) % 32, object)]).reshape(1, -1, 32)

    p = moduli_column(n)
    inverses = np.array([pow(product // int(q), -1, int(q)) for q in oracle.MODULI[:n]], object).reshape(n, 1, 1)
    v = (x[:, None] % p * inverses % p).astype(np.int64)
    aliased = (v == 0) & (p < 256) & (rng.random(v.shape) < 0.5)
    v = np.where(aliased, p, v).astype(np.uint8)

    m, columns = x.shape[1:]
    mu, nu = rng.integers(-1000, 1137, (1, m)), rng.integers(-1000, 1137, (1, columns))
    mu[:, ::3], nu[:, ::3] = rng.integers(-30, 31, mu[:, ::3].shape), rng.integers(-30, 31, nu[:, ::3].shape)
    zeros = [np.zeros((1, rows, 1)) for rows in (m, columns)]
    c = combine(stages, n, v, mu.astype(np.int32), nu.astype(np.int32), *zeros)
    expected = [
        [oracle.round_to_float64(int(x[0, i, j]), -int(mu[0, i] + nu[0, j])) for j in range(columns)] for i in range(m)
    ]
    assert_same_bits(c, np.array([expected]))


@pytest.mark.parametrize("n", [4, 15, 20])
def test_whole_products(n):
    """Handlers and reference agree in one piece, in blocks and for special values."""
    rng = np.random.default_rng(n)
    a, b, pairs = generators.problems(rng, 17, 5, 300, 6, moduli=n)
    b = np.swapaxes(b, 1, 2)
    expected = oracle.product(a, np.swapaxes(b, 1, 2), n)
    whole = Blocks(17, 5, 6, 300)
    for stages, blocks in ((HANDLERS, whole), (HANDLERS, Blocks(4, 2, 4, 128)), (_reference, whole)):
        assert_same_bits(product(stages, blocks, n, a, b), expected, str(pairs))


def test_a_platform_without_handlers_gets_the_reference():
    """Lowering for a TPU holds integer operations and no call; lowering for CUDA holds the calls. (case 22)"""
    import jax_ozaki as jo

    traced = jax.jit(jo.dot).trace(jnp.ones((3, 4)), jnp.ones((4, 5)))
    cuda = traced.lower(lowering_platforms=("cuda",)).as_text()
    for stage in ("ladder_quantize", "certify", "ladder_mma", "ladder_combine"):
        assert f"jax_ozaki.{stage}.v1" in cuda
    tpu = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "jax_ozaki." not in tpu
    assert "stablehlo.clz" in tpu or "count_leading_zeros" in tpu


def test_complex_products_on_a_platform_without_handlers():
    a, b = jnp.ones((8, 256), complex), jnp.ones((256, 5), complex)
    for specs in ((), (P("x"), P()), (P(None, "x"), P("x"))):
        operands = put(mesh(x=2), specs, (a, b)) if specs else (a, b)
        traced = jax.jit(lambda a, b: jo.dot(a, b, contract=jo.Contract.moduli(9))).trace(*operands)
        assert "jax_ozaki." not in traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize("partial_crt", [False, True])
@pytest.mark.parametrize(("dtype", "largest"), [(float, 1348), (complex, 1070)])
def test_short_products_have_a_fifth_command(monkeypatch, partial_crt, dtype, largest):
    """XLA records them as CUDA graphs: those of up to 2^35 INT8 multiplications, whatever the epilogue writes."""
    import jax_ozaki as jo

    monkeypatch.setattr(_stages.by_platform()["cuda"], "_partial_crt", partial_crt)
    for n, commands in ((7, 5), (largest, 5), (largest + 1, 4)):
        a, b = (jax.ShapeDtypeStruct((n, n), dtype) for _ in range(2))
        product = jax.jit(lambda a, b: jo.dot(a, b, contract=jo.Contract.moduli(14)))
        text = product.trace(a, b).lower(lowering_platforms=("cuda",)).as_text()
        assert len(re.findall(r"custom_call @jax_ozaki|stablehlo.minimum", text)) == commands


def test_constants_of_the_reconstruction():
    for n in oracle.COUNTS:
        crt = _moduli.crt(n)
        assert crt.product == math.prod(oracle.MODULI[:n])
        for p, inverse in zip(oracle.MODULI[:n], crt.inverses, strict=True):
            assert crt.product // p * inverse % p == 1


@pytest.mark.parametrize("stages", [HANDLERS, _reference], ids=["handlers", "reference"])
@pytest.mark.parametrize("k", [128, 129, 8191, 8193, 20_000])
def test_occupancy(stages, k):
    """Rows with nonzeros here and there: one bit a part of k, also the last one."""
    rng = np.random.default_rng(k)
    x = rng.standard_normal((1, 9, k)) * (rng.random((1, 9, -(-k // 64))) < 0.3).repeat(64, -1)[..., :k]
    x[0, 0] = 0
    x[0, 1, :-1] = 0
    x[0, 2] = 1
    table = jit_stages(lambda stages, x: stages.stats(Operand(x, "brk"), 14)[1])(stages, x)
    np.testing.assert_array_equal(np.asarray(table)[..., 7].astype(np.uint64), oracle.occupancy(x))
