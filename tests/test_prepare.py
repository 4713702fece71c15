"""Prepared operands: the bits, derivatives and transformations of the product without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import oracle
from compiled import calls, computations, emulated, hlo
from jax_ozaki import Contract
from oracle import assert_same_bits

N = 15
CONTRACT = Contract.moduli(N)
RNG = np.random.default_rng(0)
A, B = generators.operands(RNG, 6, 40, 5, rows=generators.phi(4), columns=generators.phi(4))
CT = RNG.standard_normal((6, 5))
SQUARE = RNG.standard_normal((6, 6))


def lhs(a):
    return jo.prepare(a, "lhs", CONTRACT)


def rhs(b):
    return jo.prepare(b, "rhs", CONTRACT)


def product(a, b):
    return oracle.product(a, b, N)


FORMS = {
    "lhs": lambda a, b: (lhs(a), b),
    "rhs": lambda a, b: (a, rhs(b)),
    "both": lambda a, b: (lhs(a), rhs(b)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fn", [jo.matmul, jo.dot], ids=["matmul", "dot"])
def test_same_bits(fn, form):
    x, y = FORMS[form](A, B)
    assert_same_bits(fn(x, y), product(A, B))
    assert_same_bits(jax.jit(fn)(x, y), product(A, B))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_operator(form, array):
    def matmul(x, y):
        return x @ y

    x, y = FORMS[form](array(A), array(B))
    assert_same_bits(x @ y, product(A, B))
    assert_same_bits(jax.jit(matmul)(x, y), product(A, B))
    stack = jax.vmap(lambda a, b: matmul(*FORMS[form](a, b)))(array([A, 2 * A]), array([B, B]))
    assert_same_bits(stack, np.stack([product(A, B), product(2 * A, B)]))


def test_operator_of_other_types():
    class Other:
        def __matmul__(self, other):
            return "other @"

        def __rmatmul__(self, other):
            return "@ other"

    p = jo.prepare(A, side="lhs")
    assert (p @ Other(), Other() @ p) == ("@ other", "other @")
    with pytest.raises(TypeError, match="unsupported operand"):
        p @ [[1.0]]


@pytest.mark.parametrize("family", ["special values", "subnormals", "near overflow", "tiny tail", "sparse"])
def test_same_bits_for_other_data(family):
    rows = generators.FAMILIES[family]
    a, b = generators.operands(np.random.default_rng(1), 6, 40, 5, rows=rows, columns=rows)
    assert_same_bits(jo.matmul(lhs(a), rhs(b)), product(a, b))


@pytest.mark.parametrize("side", ["lhs", "rhs"])
def test_rows_that_take_the_scale_of_fewer_moduli(side):
    """Under the default contract: prepared, in a batch and transposed as by themselves."""
    few_tiny = generators.few_tiny
    a, b = generators.operands(np.random.default_rng(2), 12, 1100, 10, batch=(2,), rows=few_tiny, columns=few_tiny)
    expected = np.stack([jo.matmul(x, y) for x, y in zip(a, b, strict=True)])
    assert len(np.unique(jo.matmul(a, b, contract=Contract.moduli(15)) == expected)) == 2
    form = {"lhs": lambda a, b: (jo.prepare(a, "lhs"), b), "rhs": lambda a, b: (a, jo.prepare(b, "rhs"))}[side]
    assert_same_bits(jo.matmul(*form(a, b)), expected)
    assert_same_bits(jax.vmap(lambda a, b: jo.matmul(*form(a, b)))(a, b), expected)
    transposed = np.ascontiguousarray(np.swapaxes(a, 1, 2)), np.ascontiguousarray(np.swapaxes(b, 1, 2))
    assert_same_bits(jax.jit(lambda x, y: jo.matmul(*form(x.mT, y.mT)))(*transposed), expected)


def test_vectors():
    assert_same_bits(jo.matmul(lhs(A), B[:, 0]), product(A, B[:, :1])[:, 0])
    assert_same_bits(jo.dot(A[0], rhs(B)), product(A[:1], B)[0])


def test_stacks():
    a, b = RNG.standard_normal((3, 6, 40)), RNG.standard_normal((3, 40, 5))
    assert_same_bits(jo.matmul(lhs(a), b), product(a, b))
    assert_same_bits(jo.matmul(a, rhs(b)), product(a, b))
    assert_same_bits(jo.matmul(lhs(a), b[0]), np.stack([product(x, b[0]) for x in a]))
    assert_same_bits(jo.matmul(a[0], rhs(b)), np.stack([product(a[0], y) for y in b]))


def test_default_contract():
    with jo.default_contract(Contract.moduli(5)):
        prepared = jo.prepare(A)
    assert prepared.contract == Contract.moduli(5)
    assert_same_bits(jo.matmul(prepared, B), oracle.product(A, B, 5))


# Derivatives.


@pytest.mark.parametrize("form", FORMS)
def test_gradient(form):
    def loss(a, b):
        return (CT * jo.matmul(*FORMS[form](a, b))).sum()

    da, db = jax.jit(jax.grad(loss, (0, 1)))(A, B)
    assert_same_bits(da, product(CT, B.T))
    assert_same_bits(db, product(A.T, CT))
    assert emulated(jax.grad(loss, (0, 1)), jnp.asarray(A), jnp.asarray(B))


@pytest.mark.parametrize("form", FORMS)
def test_jvp(form):
    tangents = RNG.standard_normal(A.shape), RNG.standard_normal(B.shape)
    c, tangent = jax.jvp(lambda a, b: jo.matmul(*FORMS[form](a, b)), (A, B), tangents)
    assert_same_bits(c, product(A, B))
    assert_same_bits(tangent, product(tangents[0], B) + product(A, tangents[1]))


def test_second_derivatives():
    x = RNG.standard_normal((3, 3))

    def f(x):
        return (jo.matmul(lhs(x), rhs(x)) ** 2).sum()

    def native(x):
        return (jnp.matmul(x, x) ** 2).sum()

    for second in (jax.hessian, lambda f: jax.jacfwd(jax.jacfwd(f)), lambda f: jax.jacrev(jax.jacrev(f))):
        np.testing.assert_allclose(second(f)(x), second(native)(x), rtol=1e-12, atol=1e-12)


def test_gradient_through_a_prepared_argument():
    """The array inside a Prepared is its differentiable leaf."""
    prepared = lhs(A)
    gradient = jax.grad(lambda p: (CT * jo.matmul(p, B)).sum(), allow_int=True)(prepared)
    assert_same_bits(gradient.array, product(CT, B.T))


def test_a_constant_prepared_operand_has_no_gradient_but_lets_one_through():
    prepared = lhs(A)
    assert_same_bits(jax.grad(lambda b: (CT * jo.matmul(prepared, b)).sum())(B), product(A.T, CT))


# Transformations.


def test_vmap_over_a_prepared_stack():
    a, b = RNG.standard_normal((3, 6, 40)), RNG.standard_normal((3, 40, 5))
    assert_same_bits(jax.vmap(jo.matmul)(lhs(a), b), product(a, b))
    assert_same_bits(jax.vmap(jo.matmul, (0, None))(lhs(a), b[0]), np.stack([product(x, b[0]) for x in a]))
    assert_same_bits(jax.vmap(jo.matmul)(a, rhs(b)), product(a, b))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_over_the_other_operand(axis):
    b = RNG.standard_normal((3, 40, 5))
    moved = np.moveaxis(b, 0, axis)
    expected = np.stack([product(A, y) for y in b])
    prepared = lhs(A)
    assert_same_bits(jax.vmap(jo.matmul, (None, axis))(prepared, moved), expected)
    assert_same_bits(jax.vmap(lambda y: jo.matmul(prepared, y), axis)(moved), expected)


def test_vmap_of_preparing():
    a, b = RNG.standard_normal((3, 6, 40)), RNG.standard_normal((3, 40, 5))
    assert_same_bits(jax.jit(jax.vmap(lambda x, y: jo.matmul(lhs(x), rhs(y))))(a, b), product(a, b))
    assert_same_bits(
        jax.vmap(lambda x: jo.matmul(lhs(x), B), 1)(np.moveaxis(a, 0, 1)), np.stack([product(x, B) for x in a])
    )
    per_sample = jax.vmap(jax.grad(lambda x, y: (CT * jo.matmul(lhs(x), y)).sum()))(a, b)
    assert_same_bits(per_sample, np.stack([product(CT, y.T) for y in b]))


def test_nested_vmap():
    a, b = RNG.standard_normal((2, 3, 6, 40)), RNG.standard_normal((2, 40, 5))
    result = jax.vmap(jax.vmap(jo.matmul, (0, None)))(lhs(a), b)
    for i, j in np.ndindex(2, 3):
        assert_same_bits(result[i, j], product(a[i, j], b[i]))


def test_scan():
    square, start = RNG.standard_normal((6, 6)) / 3, RNG.standard_normal((6, 2))

    def iterate(prepared, x):
        return jax.lax.scan(lambda x, _: (jo.matmul(prepared, x), None), x, length=4)[0]

    expected = start
    for _ in range(4):
        expected = product(square, expected)
    assert_same_bits(jax.jit(iterate)(lhs(square), start), expected)
    gradient = jax.grad(lambda a: iterate(lhs(a), start).sum())(square)
    with jo.default_contract(CONTRACT):
        plain = jax.grad(lambda a: iterate(a, start).sum())(square)
    assert_same_bits(gradient, plain)


def test_scan_over_a_prepared_stack():
    a, b = RNG.standard_normal((3, 6, 40)), RNG.standard_normal((3, 40, 5))
    _, c = jax.lax.scan(lambda carry, xy: (carry, jo.matmul(*xy)), 0, (lhs(a), b))
    assert_same_bits(c, product(a, b))


def test_a_prepared_operand_is_quantized_once():
    prepared = lhs(A)
    assert len(calls(hlo(jo.matmul, prepared, B), "quantize")) == 1

    def loop(p, x):
        return jax.lax.fori_loop(0, 5, lambda _, x: jo.matmul(p, x) / 8, x)

    square = RNG.standard_normal((24, 24))
    text = hlo(loop, lhs(square), RNG.standard_normal((24, 1)))
    assert sum(len(calls(body, "quantize")) for body in computations(text).values()) == 1


def test_tree():
    prepared = lhs(A)
    leaves, structure = jax.tree.flatten(prepared)
    assert leaves[0] is prepared.array or any(leaf is prepared.array for leaf in leaves)
    assert_same_bits(jo.matmul(jax.tree.unflatten(structure, leaves), B), product(A, B))
    assert "None" in repr(jax.tree.map(lambda _: None, prepared))  # unflatten validates nothing
    assert jax.tree.structure(lhs(A)) == structure
    assert jax.tree.structure(rhs(A)) != structure
    assert (prepared.shape, prepared.ndim, prepared.dtype) == (A.shape, 2, A.dtype)
    assert prepared == prepared and prepared != lhs(A) and len({prepared, lhs(A)}) == 2
    assert repr(prepared) == "Prepared(float64[6, 40], side='lhs', contract=moduli(15), moduli=15)"


def test_a_prepared_operand_is_no_array():
    prepared = lhs(A)
    for misuse in (np.asarray, lambda p: np.dot(p, B), jnp.asarray):
        with pytest.raises(TypeError, match="no array"):
            misuse(prepared)
    for misuse in (lambda p: p * 2, lambda p: 1 + p, lambda p: np.add(p, 1)):
        with pytest.raises(TypeError, match="Prepared"):
            misuse(prepared)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: jo.prepare(A, "left"), ValueError),
        (lambda: jo.prepare(A.astype(np.float32)), TypeError),
        (lambda: jo.prepare(A[0]), ValueError),
        (lambda: jo.prepare(A, contract=Contract.native()), ValueError),
        (lambda: jo.matmul(rhs(SQUARE), SQUARE), ValueError),
        (lambda: jo.matmul(SQUARE, lhs(SQUARE)), ValueError),
        (lambda: rhs(SQUARE) @ SQUARE, ValueError),
        (lambda: SQUARE @ lhs(SQUARE), ValueError),
        (lambda: jo.matmul(lhs(SQUARE).array, lhs(SQUARE)), ValueError),
        (lambda: jo.matmul(lhs(A), A), (TypeError, ValueError)),
        (lambda: jo.matmul(lhs(A), jo.prepare(B, "rhs", Contract.moduli(9))), ValueError),
        (lambda: jo.matmul(lhs(A), B, contract=Contract.moduli(9)), ValueError),
    ],
)
def test_errors(make, error):
    with pytest.raises(error):
        make()


@pytest.mark.parametrize(
    ("a", "x64", "words"),
    [
        (A, False, r'"jax_enable_x64", True'),
        (A.astype(">f8"), True, "a has dtype >f8: a dtype of JAX is needed"),
        (A + 1j, True, r"complex128 is prepared under .* e\.g\. contract=Contract\.normwise\(2\)"),
    ],
)
def test_errors_say_what_to_do(a, x64, words):
    with jax.enable_x64(x64), pytest.raises((TypeError, ValueError), match=words):
        jo.prepare(a)


def test_report_of_a_prepared_product():
    contract = Contract.normwise(2)
    c, report = jo.matmul(jo.prepare(A, "lhs", contract), B, return_report=True)
    expected, expected_report = jo.matmul(A, B, contract=contract, return_report=True)
    assert_same_bits(c, expected)
    assert report.achieved == expected_report.achieved
    assert report.contract == contract


@pytest.mark.parametrize(
    ("subscripts", "shape", "other", "side"),
    [
        ("ik,ikn->in", (3, 7), (3, 7, 4), "lhs"),
        ("sik,ikn->sin", (5, 3, 7), (3, 7, 4), "lhs"),
        ("sik,skn->sin", (5, 3, 7), (5, 7, 4), "lhs"),
        ("skn,nak->nas", (5, 7, 3), (3, 4, 7), "rhs"),
    ],
)
def test_any_axis_but_the_contracted_one_may_be_a_batch_axis(subscripts, shape, other, side):
    rng = np.random.default_rng(0)
    a, b = generators.fractions(rng, shape), generators.fractions(rng, other)
    assert_same_bits(jo.einsum(subscripts, jo.prepare(a, side), b), jo.einsum(subscripts, a, b))
