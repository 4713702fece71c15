"""Products over two GPUs of one host: the bits of one GPU, and of the CPU."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from compiled import collectives, text_of
from generators import FAMILIES, complex_operands, fractions, operands, phi, problems
from jax_ozaki import Contract
from meshes import put
from oracle import assert_same_bits

LAYOUTS = {
    "batch": ("bmk,bkn->bmn", P("x"), P("x"), set()),
    "m": ("bmk,bkn->bmn", P(None, "x"), P(), set()),
    "n": ("bmk,bkn->bmn", P(), P(None, None, "x"), set()),
    "k": ("bmk,bkn->bmn", P(None, None, "x"), P(None, "x"), {"all-reduce", "all-gather"}),
}


@pytest.fixture(scope="module")
def devices(gpu):
    if len(jax.devices("cuda")) < 2:
        pytest.skip("needs two GPUs")
    return jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cuda")[:2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_of_one_gpu(devices, agree, layout):
    """Every rung of the default contract; the last one's operands are gathered."""
    subscripts, *specs, expected = LAYOUTS[layout]
    a, b, _ = problems(np.random.default_rng(0), 2 * len(FAMILIES), 12, 768, 14)
    product = partial(jo.einsum, subscripts)
    whole = agree(product, a, b)
    arrays = put(devices, specs, (a, b))
    program = jax.jit(product).lower(*arrays).compile()
    assert collectives(text_of(program)).keys() == expected
    assert_same_bits(program(*arrays), whole)


CONTRACTED = [
    *((Contract.componentwise(), operands, k, out) for k in (2 * 700, 2 * 2048) for out in (P(), P("x"), P(None, "x"))),
    (Contract.exact(), operands, 2 * 700, P("x")),
    (Contract.mantissa(53), operands, 2 * 2048, P(None, "x")),
    (Contract.mantissa(53), complex_operands, 2 * 700, P("x")),
]


@pytest.mark.parametrize(("contract", "make", "k", "out"), CONTRACTED, ids=lambda x: getattr(x, "__name__", str(x)))
def test_sharded_contraction(devices, agree, contract, make, k, out):
    a, b = make(np.random.default_rng(k), 130, k, 258, rows=phi(3), columns=phi(2))
    matmul = partial(jo.matmul, contract=contract)
    c = jax.jit(matmul, out_shardings=jax.NamedSharding(devices, out))(*put(devices, (P(None, "x"), P("x")), (a, b)))
    assert_same_bits(c, agree(matmul, a, b))


def test_gradients(devices, agree):
    rng = np.random.default_rng(1)
    a, b, w = fractions(rng, (256, 512)), fractions(rng, (512, 384)), fractions(rng, (256, 384))

    def gradients(a, b, w):
        return jax.vjp(jo.matmul, a, b)[1](w)

    expected = agree(gradients, a, b, w)
    for specs in ((P("x"), P(), P("x")), (P(None, "x"), P("x"), P())):
        for actual, whole in zip(jax.jit(gradients)(*put(devices, specs, (a, b, w))), expected, strict=True):
            assert_same_bits(actual, whole)
