"""Dtypes, weak types, preferred_element_type, precision and x64 are those of jax.numpy."""

import itertools
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
import ladder_oracle
import oracle
from compiled import emulated, products
from meshes import mesh, run
from oracle import assert_same_bits

DTYPES = [
    "bool", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float8_e4m3fn", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
WEAK = {"weak int": 2, "weak float": 2.0, "weak complex": 2j}
F64 = jnp.float64


def operand(kind, shape=(3, 3)):
    """Weakly typed arrays come from a Python scalar. (case 13)"""
    return jnp.full(shape, WEAK[kind]) if kind in WEAK else jnp.ones(shape, kind)


def outcome(fn, *args):
    """(dtype, weak type) of the result, or the type of the exception."""
    try:
        result = jax.eval_shape(fn, *args)
    except Exception as error:
        return type(error)
    return result.dtype, result.weak_type


@pytest.mark.parametrize("left", [*DTYPES, *WEAK])
def test_output_dtype_and_weak_type(left):
    a = operand(left)
    for right in (*DTYPES, *WEAK):
        b = operand(right)
        for name in ("dot", "matmul", "vdot"):
            ours, theirs = getattr(jo, name), getattr(jnp, name)
            assert outcome(ours, a, b) == outcome(theirs, a, b), (name, left, right)


@pytest.mark.parametrize("name", ["inner", "tensordot", "vecdot", "matvec", "vecmat", "einsum"])
def test_output_dtype_of_the_other_functions(name):
    kinds = ["bool", "int32", "float16", "float32", "float64", "complex128", *WEAK]
    for left, right in itertools.product(kinds, kinds):
        a, b = operand(left), operand(right)
        first = "ij,jk" if name == "einsum" else None

        def call(module, a, b, first=first):
            fn = getattr(module, name)
            return fn(first, a, b) if first else fn(a, b)

        ours, theirs = outcome(lambda a, b: call(jo, a, b), a, b), outcome(lambda a, b: call(jnp, a, b), a, b)
        assert ours == theirs, (left, right)


def test_python_scalars_and_numpy_arrays():
    for a, b in itertools.product((2, 2.0, True, np.float32(2), np.arange(3), np.arange(3.0)), repeat=2):
        assert outcome(lambda a=a, b=b: jo.dot(a, b)) == outcome(lambda a=a, b=b: jnp.dot(a, b)), (a, b)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("float64", "complex128")])
def test_other_dtypes_pass_through(dtype):
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.integers(0, 3, (4, 4))).astype(dtype) for _ in range(2))
    assert products(jo.dot, a, b) == ["dot_general"]
    np.testing.assert_array_equal(jo.dot(a, b), jnp.dot(a, b))


@pytest.mark.parametrize(
    "kinds",
    [
        ("float64", "float64"),
        ("float64", "float32"),
        ("int32", "float64"),
        ("weak float", "float64"),
        ("bool", "float64"),
    ],
)
def test_float64_results_are_emulated(kinds):
    a, b = map(operand, kinds)
    assert emulated(jo.dot, a, b)
    assert emulated(jo.dot, b, a)
    assert emulated(jo.matmul, b, a)
    oracle.assert_same_bits(jo.dot(a, b), ladder_oracle.default_product(a, b))


@pytest.mark.parametrize("preferred", ["float32", "float64", "int32", "complex128"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_preferred_element_type(dtype, preferred):  # case 14
    x = jnp.asarray(np.random.default_rng(1).integers(-9, 9, (3, 3))).astype(dtype)
    for name in ("dot", "matmul", "einsum"):

        def call(module, x, name=name):
            args = ("ij,jk", x, x) if name == "einsum" else (x, x)
            return getattr(module, name)(*args, preferred_element_type=preferred)

        expected = outcome(lambda x, call=call: call(jnp, x), x)
        assert outcome(lambda x, call=call: call(jo, x), x) == expected
        if not isinstance(expected, type):
            np.testing.assert_array_equal(call(jo, x), call(jnp, x))


def test_gradient_has_the_dtype_of_the_operand():  # case 14
    a = jnp.asarray(np.random.default_rng(2).standard_normal((3, 4)), jnp.float32)
    b = jnp.asarray(np.random.default_rng(3).standard_normal((4, 2)), jnp.float32)

    def loss(dot, a, b):
        return dot(a, b, preferred_element_type=F64).sum()

    ours = jax.grad(loss, (1, 2))(jo.dot, a, b)
    theirs = jax.grad(loss, (1, 2))(jnp.dot, a, b)
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == y.dtype == jnp.float32
        np.testing.assert_allclose(x, y, rtol=1e-6)
    mixed = jax.grad(lambda a, b: jo.dot(a, b).sum(), (0, 1))(a, b.astype(F64))
    assert [g.dtype for g in mixed] == [jnp.float32, F64]


@pytest.mark.parametrize("precision", [None, "highest", "float32", jax.lax.Precision.DEFAULT, ("highest", "default")])
def test_precision_changes_no_bit(precision):
    x = jnp.asarray(np.random.default_rng(4).standard_normal((3, 3)))
    oracle.assert_same_bits(jo.matmul(x, x, precision=precision), jo.matmul(x, x))


def test_unknown_precision_is_an_error():
    x = jnp.ones((2, 2))
    for module in (jnp, jo):
        with pytest.raises((ValueError, TypeError)):
            module.dot(x, x, precision="no such precision")


def test_x64_off():  # case 15
    x = np.random.default_rng(5).standard_normal((3, 3))
    with jax.enable_x64(False):
        c = jo.dot(x, x)
        assert c.dtype == jnp.float32
        np.testing.assert_array_equal(c, jnp.dot(x, x))
        assert products(jo.dot, x, x) == ["dot_general"]


def test_x64_switched_around_a_jitted_function():  # case 15
    x = np.random.default_rng(6).standard_normal((3, 3))
    f = jax.jit(lambda x: jo.dot(x, x))
    with jax.enable_x64(False):
        narrow = f(x)
    wide = f(x)
    assert (narrow.dtype, wide.dtype) == (jnp.float32, F64)
    oracle.assert_same_bits(wide, ladder_oracle.default_product(x, x))


def test_float64_array_met_with_x64_off():  # case 15
    x = jnp.asarray(np.random.default_rng(7).standard_normal((3, 3)))
    assert x.dtype == F64

    def result(fn):
        with jax.enable_x64(False):
            try:
                return fn(x, x).dtype
            except Exception as error:
                assert "FFI" not in str(error)
                assert "custom call" not in str(error).lower()
                return type(error)

    assert result(jo.dot) == result(jnp.dot) or issubclass(result(jo.dot), (TypeError, ValueError))


def test_import_changes_no_flag():  # case 15
    program = "import jax; before = dict(jax.config.values); import jax_ozaki; assert dict(jax.config.values) == before"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_float64_operands_of_mixed_products_with_x64_off():  # case 15
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    with jax.enable_x64(False):
        for other in (b.astype("float32"), np.ones((4, 5)), 2.0):
            emulated, native = jo.dot(a, other), jnp.dot(a, other)
            assert emulated.dtype == native.dtype
            np.testing.assert_array_equal(emulated, native)


def test_a_weak_float64_operand_leaves_a_float32_product_native():
    a, weak = jnp.ones((3, 4), jnp.float32), jnp.full((4, 5), 2.0)
    assert "ozaki" not in str(jax.make_jaxpr(jo.dot)(a, weak))


@pytest.mark.parametrize("contract", ["componentwise(sqrt_k)", "exact", "mantissa(53)"])
def test_strict_promotion_concerns_the_program(contract):
    """Not the arithmetic within, on one device or on shards."""
    contract = jo.Contract.parse(contract)
    a = np.random.default_rng(0).standard_normal((8, 8))
    expected = jo.dot(a, a, contract=contract)
    with jax.numpy_dtype_promotion("strict"):
        assert_same_bits(jo.dot(a, a, contract=contract), expected)
        c, _ = run(partial(jo.dot, contract=contract), mesh(x=2), (P(None, "x"), P("x")), (a, a))
        assert_same_bits(c, expected)
        with pytest.raises(ValueError, match="promotion"):
            jo.dot(a, jnp.asarray(a, jnp.float32), contract=contract)
