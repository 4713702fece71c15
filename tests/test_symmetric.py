"""Which products are lowered as products of an array with itself; what they compute is tests/gpu's."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from jax_ozaki import Contract, _stages
from meshes import mesh, run
from oracle import assert_same_bits

N = 1536
SQUARE, ODD, STACK = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((N, N), (N, 700), (3, N, N)))
LARGE = jax.ShapeDtypeStruct((8192, 8192), jnp.float64)


def stages(fn, *operands):
    """The CUDA stages of a program."""
    lowered = jax.jit(fn).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    return re.findall(r"jax_ozaki\.(\w+)\.v1", lowered)


def dot(x, y):
    return jo.matmul(x, y, contract=Contract.moduli(14))


def square(x):
    return dot(x, x)


def iterate(x):
    return jax.lax.fori_loop(0, 3, lambda i, p: 2 * p - p @ p, x)


@pytest.mark.parametrize(
    ("fn", "operand"),
    [
        (square, SQUARE),
        (square, STACK),
        (jax.vmap(square), STACK),
        (lambda x: dot(x.T, x.T), SQUARE),
        (lambda x: jo.einsum("ibj,jbk->bik", x, x, contract=Contract.moduli(14)), jnp.zeros((N, 2, N))),
        (jo.emulate(iterate, Contract.moduli(14)), SQUARE),
        (lambda x: jo.linalg.matrix_power(x, 2, contract=Contract.moduli(14)), SQUARE),
    ],
    ids=("matmul", "batch", "vmap", "transposes", "einsum", "emulate", "matrix_power"),
)
def test_a_square_is_tested(fn, operand):
    found = stages(fn, operand)
    assert found.count("symmetry") == found.count("symmetric_mma") == found.count("symmetric_combine") == 1
    assert "grouped_mma" not in found


@pytest.mark.parametrize(
    ("fn", "operand"),
    [
        (lambda x: dot(x, x.T), ODD),
        (lambda x: dot(x, jnp.swapaxes(x, 1, 2)), STACK),
        (lambda x: jo.inner(x, x, contract=Contract.moduli(14)), SQUARE),
        (lambda x: dot(x, x.T), LARGE),
    ],
    ids=("matmul", "batch", "inner", "strassen"),
)
def test_a_gram_matrix_is_not(fn, operand):
    assert stages(fn, operand) == ["quantize", "symmetric_mma", "symmetric_combine"]


def test_a_large_square_has_strassen_for_the_other_case():
    assert {"symmetry", "strassen_quantize", "strassen_combine", "symmetric_mma"} <= set(stages(square, LARGE))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: dot(x, x + 1),
        lambda x: dot(x[:1000], x[:1000].T),
        lambda x: dot(x[:, :1000], x[:1000]),
        jax.grad(lambda x: square(x).sum()),
        lambda x: dot(x, x.astype(jnp.complex128)),
        lambda x: square(x.astype(jnp.complex128)),
    ],
)
def test_every_other_product_is_ordinary(fn):
    assert not any(stage.startswith("symm") for stage in stages(fn, SQUARE))


@pytest.mark.parametrize("fn", [square, lambda x: dot(x, x.T)])
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
def test_shards_of_one_array_are_not_the_same(monkeypatch, fn, spec):
    """The stages that a device runs see two arrays: the rows of the one are not the columns of the other."""
    one_array = []

    def watched(stages, lhs, rhs, blocks):
        one_array.append(lhs.operand.array is rhs.operand.array)

    monkeypatch.setattr(_stages, "with_symmetry", watched)
    x = np.random.default_rng(0).standard_normal((48, 48))
    (c,), _ = run(lambda x: (fn(x),), mesh(), [spec], [x])
    assert one_array[0] and not one_array[-1]
    assert_same_bits(np.asarray(c), np.asarray(jax.jit(lambda x: fn(x))(x)))
    assert one_array[-1]


@pytest.mark.parametrize("fn", [jo.dot, jo.matmul, jo.inner, jo.vdot])
def test_an_operand_given_twice(fn):
    """Outside of jit, too, one array is one: the same result, and one trace for each way of giving it."""
    x = np.random.default_rng(1).standard_normal((40, 40))
    y = jnp.asarray(x)
    assert_same_bits(np.asarray(fn(y, y)), np.asarray(fn(y, jnp.asarray(x.copy()))))
    c, report = fn(y, y, return_report=True)
    assert_same_bits(np.asarray(c), np.asarray(fn(x, x)))
    assert report.moduli == fn(y, jnp.asarray(x.copy()), return_report=True)[1].moduli
