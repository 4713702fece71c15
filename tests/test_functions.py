"""The functions against jax.numpy: shapes, values and errors for every form of operand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
from compiled import emulated, products

jnp_linalg = jnp.linalg

DOT = [
    ((), ()), ((), (2, 3)), ((3,), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)),
    ((5, 2, 3), (3,)), ((5, 2, 3), (4, 3, 6)), ((0, 3), (3, 4)), ((2, 0), (0, 4)),
    ((2, 3), (4, 5)), ((3,), (4,)),
]  # fmt: skip
MATMUL = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)), ((0, 2, 3), (0, 3, 4)), ((2, 0), (0, 4)),
    ((), (3,)), ((2, 3), (2, 3)), ((4, 2, 3), (5, 3, 4)), ((7,), (7, 64, 64)),
]  # fmt: skip
TENSORDOT = [
    ((2, 3), (3, 4), 1), ((2, 3), (2, 3), 2), ((2, 3), (4,), 0), ((7,), (7, 8, 9), 1), ((2, 3, 4), (4, 3, 5), ((1, 2), (1, 0))),
    ((2, 3, 4), (5, 2), ((0,), (1,))), ((2, 3), (3, 4), (1, 0)), ((2, 3), (4, 3), (-1, -1)), ((2, 3), (3, 2), ((0, 1), (1, 0))),
    ((2, 3), (3, 4), 3), ((2, 3), (3, 4), ((0,), (0, 1))), ((2, 3), (3, 4), ((0,), (0,))),
]  # fmt: skip
EINSUM = [
    ("ij,jk", (2, 3), (3, 4)), ("ij,jk->ki", (2, 3), (3, 4)), ("ij,ij->", (2, 3), (2, 3)), ("ij,ij->i", (2, 3), (2, 3)),
    ("i,j->ij", (2,), (3,)), ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("ijb,bkj->ikb", (2, 3, 5), (5, 4, 3)),
    ("...ij,...jk->...ik", (6, 5, 2, 3), (5, 3, 4)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("abc,cd,bde->ae", (2, 3, 4), (4, 5), (3, 5, 6)),
    ("a,aij->ij", (7,), (7, 8, 9)), ("ii,ij->j", (3, 3), (3, 4)), ("ij,k->i", (2, 3), (4,)), ("ij->ji", (2, 3)), ("ii", (3, 3)),
    ("ij,jk", (2, 3), (4, 5)), ("ij,jk->im", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3,)),
]  # fmt: skip
VECTORS = [((3,), (3,)), ((5, 3), (3,)), ((5, 3), (5, 3)), ((6, 1, 3), (5, 3)), ((3,), (4,)), ((), (3,))]
MATVEC = [((2, 3), (3,)), ((5, 2, 3), (3,)), ((2, 3), (5, 3)), ((5, 2, 3), (5, 3)), ((2, 3), (4,)), ((3,), (3,))]
VECMAT = [((3,), (3, 4)), ((5, 3), (3, 4)), ((3,), (5, 3, 4)), ((5, 3), (5, 3, 4)), ((2,), (3, 4)), ((3,), (3,))]
DOT_GENERAL = [
    ((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ((2, 3), (4, 3), (((1,), (1,)), ((), ()))),
    ((5, 2, 3), (3, 5, 4), (((2,), (0,)), ((0,), (1,)))),
    ((2, 3), (4, 5), (((), ()), ((), ()))),
    ((4, 3, 5), (5, 4), (((), ()), ((2, 0), (0, 1)))),
    ((2, 3, 4, 5), (5, 4, 3, 2), (((1, 3), (2, 0)), ((2, 0), (1, 3)))),
    ((2, 3), (4, 5), (((1,), (0,)), ((), ()))),
    ((2, 3), (3, 4), (((2,), (0,)), ((), ()))),
    ((2, 3), (3, 4), (((1,), (0,)), ((0,), ()))),
]  # fmt: skip

CALLS = [
    *(("dot", s, (), {}) for s in DOT),
    *(("matmul", s, (), {}) for s in MATMUL),
    *(("vdot", s, (), {}) for s in [((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (6,)), ((), ()), ((3,), (4,))]),
    *(("inner", s, (), {}) for s in [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (5, 4, 3)), ((2, 3), ()), ((2, 3), (3, 2))]),
    *(("tensordot", (a, b), (axes,), {}) for a, b, axes in TENSORDOT),
    *(("einsum", tuple(s), subscripts, {}) for subscripts, *s in EINSUM),
    ("einsum", ((2, 3), (3, 4), (4, 5)), "ij,jk,kl->il", {"optimize": False}),
    ("einsum", ((2, 3), (3, 4), (4, 5)), "ij,jk,kl->il", {"optimize": [(1, 2), (0, 1)]}),
    *(("vecdot", s, (), {}) for s in VECTORS),
    ("vecdot", ((3, 5), (3, 1)), (), {"axis": 0}),
    ("vecdot", ((3, 5), (3, 5)), (), {"axis": 2}),
    *(("matvec", s, (), {}) for s in MATVEC),
    *(("vecmat", s, (), {}) for s in VECMAT),
    *(("dot_general", (a, b), (dims,), {}) for a, b, dims in DOT_GENERAL),
]  # fmt: skip


def call(module, name, args, extra, kwargs):
    fn = getattr(module, name)
    if name == "einsum":
        return lambda *args: fn(extra, *args, **kwargs)
    return lambda *args: fn(*args, *extra, **kwargs)


def outcome(fn, *args):
    """The result, or the type of the exception."""
    try:
        return fn(*args), None
    except (TypeError, ValueError, IndexError) as error:
        return None, type(error)


def assert_close(actual, expected):
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("name", "shapes", "extra", "kwargs"), CALLS, ids=lambda v: str(v).replace(" ", ""))
def test_agrees_with_numpy(name, shapes, extra, kwargs):  # case 20 among them
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
    theirs = call(jax.lax if name == "dot_general" else jnp, name, args, extra, kwargs)
    ours = call(jo, name, args, extra, kwargs)
    expected, error = outcome(theirs, *args)
    actual, actual_error = outcome(ours, *args)
    assert actual_error == error
    if error is None:
        assert_close(actual, expected)
        native = products(theirs, *args)
        assert len(products(ours, *args)) == len(native)
        assert not native or emulated(ours, *args)


@pytest.mark.parametrize(
    ("name", "options"), [("matmul", {}), ("tensordot", {"axes": ((1,), (0,))}), ("vecdot", {"axis": 0})]
)
def test_linalg_has_products_of_the_array_api(name, options):
    a = jnp.asarray(np.random.default_rng(0).standard_normal((3, 3)))
    product = partial(getattr(jo.linalg, name), **options)
    assert_close(product(a, a), getattr(jnp_linalg, name)(a, a, **options))
    assert emulated(product, a, a)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4), (4,)),
        ((2, 9), (9, 3), (3, 8), (8, 2)),
        ((2, 3),),
        ((2, 3), (4, 5)),
        ((2, 3, 4), (4, 5)),
    ],
)
def test_multi_dot(shapes):
    rng = np.random.default_rng(1)
    args = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
    expected, error = outcome(jnp_linalg.multi_dot, args)
    actual, actual_error = outcome(jo.linalg.multi_dot, args)
    assert actual_error == error
    if error is None:
        assert_close(actual, expected)
        assert emulated(lambda *x: jo.linalg.multi_dot(x), *args)


@pytest.mark.parametrize("shape", [(3, 3), (5, 3, 3), (2, 3), (3,)])
@pytest.mark.parametrize("power", [0, 1, 2, 3, 5, 8, -1, -2, 1.5])
def test_matrix_power(shape, power):
    x = jnp.asarray(np.random.default_rng(2).standard_normal(shape)) + 3 * jnp.eye(
        *shape[-2:] if len(shape) > 1 else (1, 3)
    )
    expected, error = outcome(jnp_linalg.matrix_power, x, power)
    actual, actual_error = outcome(jo.linalg.matrix_power, x, power)
    assert actual_error == error
    if error is None:
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
        if power > 1:
            assert emulated(lambda x: jo.linalg.matrix_power(x, power), x)


def test_einsum_accepts_sublists():
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    assert_close(jo.einsum(x, [0, 1], y, [1, 2], [2, 0]), jnp.einsum(x, [0, 1], y, [1, 2], [2, 0]))


def test_operands_that_are_not_arrays():
    assert_close(jo.dot(np.float64(2), np.ones(3)), jnp.dot(np.float64(2), np.ones(3)))
    for fn in (jo.dot, jo.matmul, jo.inner, jo.vdot):
        with pytest.raises(TypeError):
            fn([[1.0]], [[1.0]])
        with pytest.raises(TypeError):
            fn("x", np.ones(1))


@pytest.mark.parametrize(
    "name", ["dot", "matmul", "inner", "vdot", "tensordot", "vecdot", "matvec", "vecmat", "einsum", "dot_general"]
)
def test_every_function_takes_a_contract_and_a_report(name):
    x = jnp.asarray(np.random.default_rng(3).standard_normal((3, 3)))
    args = {
        "tensordot": (x, x, 1),
        "matvec": (x, x[0]),
        "vecmat": (x[0], x),
        "einsum": ("ij,jk", x, x),
        "dot_general": (x, x, (((1,), (0,)), ((), ()))),
    }.get(name, (x, x))
    contract = jo.Contract.moduli(7)
    c, report = getattr(jo, name)(*args, contract=contract, return_report=True)
    np.testing.assert_array_equal(c, getattr(jo, name)(*args, contract=contract))
    reports = report if name == "einsum" else (report,)
    assert [r.contract for r in reports] == [contract]
    with pytest.raises(TypeError):
        getattr(jo, name)(*args, contract=7)


X = jnp.asarray(np.random.default_rng(5).standard_normal((3, 3)))
DIMS = (((1,), (0,)), ((), ()))
CALL = {
    **{name: getattr(jo, name) for name in ("dot", "matmul", "inner", "vdot", "vecdot", "matvec", "vecmat")},
    "tensordot": lambda a, b: jo.tensordot(a, b, 1),
    "einsum": lambda a, b: jo.einsum("ij,jk", a, b),
    "sublists": lambda a, b: jo.einsum(a, [0, 1], b, [1, 2]),
    "dot_general": lambda a, b: jo.dot_general(a, b, DIMS),
    "multi_dot": lambda a, b: jo.linalg.multi_dot([a, b]),
}


def test_dot_general_of_einsum():
    def product(a, b):
        return jnp.einsum("ij,jk->ki", a, b, _dot_general=jo.dot_general)

    assert_close(product(X, X), jnp.einsum("ij,jk->ki", X, X))
    assert emulated(product, X, X) and emulated(jax.grad(lambda a: product(a, a).sum()), X)


@pytest.mark.parametrize("name", CALL)
def test_operands_are_arrays_by_position(name):
    for position, args in enumerate((([[1.0] * 3] * 3, X), (X, ((1.0,) * 3,) * 3))):
        for disabled in (False, True):
            with jax.disable_jit(disabled), pytest.raises(TypeError, match=rf"got .* at position {position}"):
                CALL[name](*args)


@pytest.mark.parametrize("name", CALL)
@pytest.mark.parametrize("dtype", ["O", ">f8", "longdouble"])
def test_dtypes_that_jax_does_not_have_are_named(name, dtype):
    wrong = np.asarray(X).astype(dtype)
    with pytest.raises(TypeError, match=rf"'s argument at position 1 has dtype {wrong.dtype}"):
        CALL[name](X, wrong)


@pytest.mark.parametrize("name", CALL)
def test_an_object_with_an_array(name):
    class Holder:
        def __jax_array__(self):
            return X

    np.testing.assert_array_equal(CALL[name](Holder(), X), CALL[name](X, X))


@pytest.mark.parametrize("scalar", [2.0, 2, True, np.float32(2)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.int64])
def test_scalars_without_jit(scalar, dtype):
    array = jnp.arange(6).reshape(2, 3).astype(dtype)
    for name in ("dot", "inner"):
        for args in ((scalar, array), (array, scalar), (scalar, scalar)):
            expected = getattr(jnp, name)(*args)
            for disabled in (False, True):
                with jax.disable_jit(disabled):
                    actual, report = getattr(jo, name)(*args, return_report=True)
                assert_close(actual, expected)
                assert actual.weak_type == expected.weak_type
                assert report.nonfinite_rows == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda m, linalg: m.vecdot(X, X, axis=None),
        lambda m, linalg: m.tensordot(X, X, None),
        lambda m, linalg: m.tensordot(X, X, 1) + m.tensordot(X, X, 1.0),
        lambda m, linalg: m.tensordot(X, X, 1) + m.tensordot(X, X, True),
        lambda m, linalg: m.tensordot(X, X, (1, 0)) + m.tensordot(X, X, (1.0, 0)),
        lambda m, linalg: m.tensordot(X, X, ((1,), (0,))) + m.tensordot(X, X, np.int64(1)),
        lambda m, linalg: linalg.matrix_power(X, None),
        lambda m, linalg: linalg.matrix_power(X, 3) + linalg.matrix_power(X, 3.0),
        lambda m, linalg: m.einsum("ij,jk", X, X, optimize=True) + m.einsum("ij,jk", X, X, optimize=1),
    ],
)
def test_arguments_that_are_no_integers(call):
    """None and 3.0 reach jnp's own check, whatever was called before."""
    assert outcome(call, jnp, jnp.linalg)[1] is TypeError
    assert outcome(call, jo, jo.linalg)[1] is TypeError


def test_arguments_that_are_numpy_arrays():
    one, zero = np.array([1]), np.array([0])
    np.testing.assert_array_equal(jo.dot_general(X, X, ((one, zero), ((), ()))), jo.dot(X, X))
    np.testing.assert_array_equal(jo.dot_general(X, X, np.array([[[1], [0]], [[0], [1]]])).shape, (3,))
    actual = jo.einsum(X, np.array([0, 1]), X, np.array([1, 2]), np.array([2, 0]))
    np.testing.assert_array_equal(actual, jo.einsum("ij,jk->ki", X, X))


def test_einsum_out():
    for out in (X, 3):
        with pytest.raises(NotImplementedError, match="out"):
            jo.einsum("ij,jk", X, X, out=out)


def test_default_precision_concerns_other_products():
    """Only an algorithm asked of the product itself contradicts its contract."""
    expected = jo.dot(X, X)
    with jax.default_matmul_precision("F32_F32_F32"):
        np.testing.assert_array_equal(jo.dot(X, X), expected)
        np.testing.assert_array_equal(jo.linalg.matrix_power(X, 2), expected)
    single = X.astype(jnp.float32)
    for precision in ("F32_F32_F32", jax.lax.DotAlgorithmPreset.F32_F32_F32):
        for args in ((X, X), (X, single), (jo.prepare(X), X)):
            with pytest.raises(ValueError, match="precision"):
                jo.dot(*args, precision=precision)
        with pytest.raises(ValueError, match="precision"):
            jo.dot(single, single, precision=precision, preferred_element_type=jnp.float64)
        with jax.enable_x64(False), pytest.raises(ValueError, match="precision"):
            jo.dot(X, X, precision=precision)
        np.testing.assert_array_equal(jo.dot(single, single, precision=precision), jnp.dot(single, single))
        np.testing.assert_array_equal(jo.dot(2.0, single, precision=precision), 2 * single)
    np.testing.assert_array_equal(jo.dot(X, X, precision="F64_F64_F64"), expected)


def test_native_contract_is_jnp():
    x = jnp.asarray(np.random.default_rng(4).standard_normal((40, 40)))
    native = jo.Contract.native()
    np.testing.assert_array_equal(jo.dot(x, x, contract=native), jnp.dot(x, x))
    assert products(lambda x: jo.dot(x, x, contract=native), x) == ["dot_general"]
