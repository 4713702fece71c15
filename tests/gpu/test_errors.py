"""Errors name their cause and leave the device usable; memory that others left dirty changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
from oracle import assert_same_bits

ROWS, K = 5, 300
SCALED = {"moduli": 15, "fewer_moduli": 13, "most_rounded": 3}
RIGHT = SCALED | {"batch": 1, "rows": ROWS, "k": K, "stride_b": ROWS * K, "stride_r": K, "stride_k": 1}


def statistics(x, attributes, scratch):
    types = (
        jax.ShapeDtypeStruct((1, ROWS), jnp.int32),
        jax.ShapeDtypeStruct((1, ROWS, 8), jnp.int64),
        jax.ShapeDtypeStruct((scratch,), jnp.uint8),
    )
    return jax.jit(lambda x: jax.ffi.ffi_call("jax_ozaki.stats.v1", types)(x, **attributes))(x)


def attributes(**changed):
    return {name: np.int64(value) for name, value in (RIGHT | changed).items()}


def without(name):
    return {key: value for key, value in attributes().items() if key != name}


WRONG = {
    "moduli": (attributes(moduli=21), r"the number of moduli is 21"),
    "stride": (attributes(stride_r=10 * K), r"layout of x.* leaves its buffer of 1500 elements"),
    "rows": (attributes(rows=ROWS - 1), r"scale has shape \(1, 5\), expected \(1, 4\)"),
    "type": (attributes() | {"k": np.int32(K)}, r"expected S64 but got S32"),
    "absent": (without("stride_k"), r"stride_k|[Aa]ttribute"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_names_its_cause_and_the_next_works(gpu, agree, name):
    wrong, message = WRONG[name]
    x, y = generators.operands(np.random.default_rng(0), ROWS, K, 4)
    on_gpu, scratch = jax.device_put(x, gpu), 32 * ROWS * -(-K // 128)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(statistics(on_gpu, wrong, scratch))
    assert jax.block_until_ready(statistics(on_gpu, attributes(), scratch))
    agree(jo.dot, x, y)


def test_a_short_scratch_is_refused(gpu):
    x = jax.device_put(np.ones((ROWS, K)), gpu)
    with pytest.raises(jax.errors.JaxRuntimeError, match="scratch has 1 bytes"):
        jax.block_until_ready(statistics(x, attributes(), 1))


def poison(gpu, byte):
    """Leave freed memory full of a byte."""
    with jax.default_device(gpu):
        dirt = [jnp.full((1 << 26,), byte, jnp.uint8) + jnp.uint8(0) for _ in range(16)]
        dirt += [jnp.full((1 << 14,), byte, jnp.uint8) + jnp.uint8(0) for _ in range(64)]
        jax.block_until_ready(dirt)


@pytest.mark.parametrize("shapes", [((3, 0), (0, 4)), ((5, 3, 0), (5, 0, 4))], ids=str)
def test_empty_contraction_is_zero(gpu, shapes):
    operands = [jax.device_put(np.zeros(s), gpu) for s in shapes]
    product = jax.jit(jo.matmul)
    for _ in range(3):
        poison(gpu, 0xFF)  # eight of them are a NaN
        c = np.asarray(product(*operands))
        assert_same_bits(c, np.zeros_like(c))


def test_dirty_memory_changes_no_bit(gpu, cpu):
    """Odd sizes, so that every padded buffer has a tail that nothing but the kernels wrote."""
    rng = np.random.default_rng(1)
    a, b = generators.operands(rng, 131, 1037, 77, batch=(3,), rows=generators.phi(2))
    product = jax.jit(jo.matmul)
    expected = np.asarray(product(*jax.device_put((a, b), cpu)))
    operands = jax.device_put((a, b), gpu)
    for byte in (0xFF, 0x55, 0x80):
        poison(gpu, byte)
        assert_same_bits(np.asarray(product(*operands)), expected)
