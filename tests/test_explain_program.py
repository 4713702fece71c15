"""explain: one line a product, and what stays native."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jax_ozaki as jo
import within_shard_map

A = jnp.ones((6, 4))
B = jnp.ones((4, 8))


def program(a, b):
    c = a @ b
    single = a.astype(jnp.float32) @ b.astype(jnp.float32)
    loop = lax.fori_loop(
        0, 5, lambda i, x: lax.scan(lambda y, _: (y @ jnp.ones((8, 8)), None), x, None, length=3)[0], c
    )
    last = lax.while_loop(lambda x: x[0, 0] > 1e300, lambda x: x @ jnp.ones((8, 8)), loop)
    return last + jnp.einsum("bij,bjk->ik", jnp.stack([a, a]), jnp.stack([b, b])) + single


def test_one_line_a_product():
    explanation = jo.emulate(program, min_size=5.6).explain(A, B)
    found = [(x.batch, x.m, x.n, x.k, x.dtype, x.count, x.in_while, x.native_because) for x in explanation.products]
    assert found == [
        (1, 6, 8, 4, "float64", 1, False, "size 5.538 < min_size 5.6"),
        (1, 6, 8, 4, "float32", 1, False, "float32 is not emulated"),
        (1, 6, 8, 8, "float64", 15, False, None),
        (1, 6, 8, 8, "float64", 1, True, None),
        (1, 6, 8, 8, "float64", 1, False, None),
    ]
    assert (explanation.emulated, explanation.native) == (3, 1)
    lines = str(explanation).splitlines()
    assert len(lines) == 6
    source = __file__.rsplit("/", 1)[-1]
    assert all(source in line for line in lines[:-1])
    assert "(program)" in lines[0] and re.search(r"\(6, 4\) x \(4, 8\) float64, 1 x", lines[0])
    assert "15 x" in lines[2] and "emulated" in lines[2] and "each iteration" in lines[3]
    assert lines[-1] == "3 products emulated, 1 float64 or complex128 product native"


def test_reasons():
    explain = jo.emulate(jnp.dot, jo.Contract.native(), min_size=0).explain
    assert explain(A, B).products[0].native_because == "the contract is native"
    explanation = jo.emulate(jnp.dot, min_size=0).explain(A.astype(complex), B.astype(complex))
    assert explanation.native + explanation.emulated == 1


def test_explicit_products_are_emulated():
    explanation = jo.emulate(lambda a, b: jo.dot(a, b), min_size=100).explain(A, B)
    assert explanation.emulated == 1
    assert __file__.rsplit("/", 1)[-1] in explanation.products[0].where


def test_a_function_without_lines_of_its_own_has_its_name():
    product = jo.emulate(partial(jnp.dot, precision="highest"), min_size=0)
    for fn in (jnp.dot, product, partial(product, A), jax.jit(product)):
        explanation = jo.emulate(fn, min_size=0).explain(*[A, B][isinstance(fn, partial) :])
        assert [x.where for x in explanation.products] == ["dot"]


@pytest.mark.parametrize("jit", [lambda fn: fn, jax.jit])
def test_a_product_created_at_lowering_has_the_name_of_a_function_without_lines_of_its_own(jit):
    fn = jit(partial(lax.linalg.symmetric_product, alpha=2.0))
    for explain in (jo.emulate(fn, min_size=0).explain, partial(jo.enable(min_size=0).explain, fn)):
        assert [x.where for x in explain(A, jnp.zeros((6, 6))).products] == ["symmetric_product"]


def test_shapes_are_enough():
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (A, B)]
    assert jo.emulate(program, min_size=0).explain(*shapes).emulated == 4


gram_p = Primitive("gram")
"""A library's primitive that multiplies, where only its lowering says so."""
gram_p.def_abstract_eval(lambda x: jax.core.ShapedArray((x.shape[0],) * 2, x.dtype))
mlir.register_lowering(gram_p, mlir.lower_fun(lambda x: x @ x.T, multiple_results=False))


def hidden(x):
    return gram_p.bind(x) + x @ x.T


def test_products_created_at_lowering_are_counted():
    explanation = jo.emulate(hidden, min_size=0).explain(A)
    assert (explanation.emulated, explanation.native) == (1, 1)
    assert "jax_ozaki.enable reaches it" in str(explanation)
    last = explanation.products[-1]
    assert (last.m, last.n, last.k, last.dtype) == (6, 6, 4, "float64")
    assert __file__.rsplit("/", 1)[-1] in last.where


def test_enable_leaves_none():
    explanation = jo.enable(min_size=0).explain(hidden, A)
    assert (explanation.emulated, explanation.native) == (2, 0)
    explanation = jo.enable(min_size=100).explain(hidden, A)
    assert (explanation.emulated, explanation.native) == (0, 2)
    with pytest.raises(TypeError, match="fn=3: a function is needed"):
        jo.enable().explain(3, A)


def test_products_that_emulate_reaches_at_lowering():
    """Those of primitives that can be differentiated; symmetric_product is jax's own."""

    def program(x):
        return lax.linalg.symmetric_product(x, jnp.zeros((6, 6))) + x @ x.T

    explanation = jo.emulate(program, min_size=0).explain(A)
    assert (explanation.emulated, explanation.native) == (2, 0)
    explanation = jo.emulate(program, min_size=100).explain(A)
    assert (explanation.emulated, explanation.native) == (0, 2)
    assert "size 5.143 < min_size 100" in explanation.products[-1].native_because


def test_only_the_part_of_a_solve_that_runs_is_counted():
    s = jnp.eye(6)
    explanation = jo.emulate(lambda b: jax.scipy.sparse.linalg.cg(lambda x: s @ x, b)[0], min_size=0).explain(A[:, 0])
    native = re.findall(
        r"\bdot_general\b", str(jax.make_jaxpr(lambda b: jax.scipy.sparse.linalg.cg(lambda x: s @ x, b)[0])(A[:, 0]))
    )
    assert 0 < explanation.emulated < len(native)
    assert any(x.in_while for x in explanation.products)


def test_kernels_are_native_and_say_so():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(a, b, c):
        c[...] = jnp.dot(a[...], b[...])

    def run(a, b):
        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((6, 8), jnp.float64), interpret=True)(a, b)

    explanation = jo.emulate(run, min_size=0).explain(A, B)
    assert [x.native_because for x in explanation.products] == ["in a pallas_call"]
    np.testing.assert_array_equal(jo.emulate(run, min_size=0)(A, B), A @ B)


def test_explaining_computes_nothing():
    def callback(x):
        raise AssertionError("ran")

    def noisy(a, b):
        jax.debug.callback(callback, a)
        return a @ b

    assert jo.emulate(noisy, min_size=0).explain(A, B).emulated == 1
    jax.effects_barrier()


@pytest.mark.parametrize("name", within_shard_map.PROGRAMS)
def test_products_within_shard_map(name):
    program, *args = within_shard_map.PROGRAMS[name]
    for explain in (jo.emulate(program, min_size=0).explain, partial(jo.enable(min_size=0).explain, program)):
        explanation = explain(*args)
        assert explanation.emulated == len(explanation.products) > 0
