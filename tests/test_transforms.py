"""Every transformation of JAX, and what it compiles to."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import generators
import jax_ozaki as jo
import oracle
from compiled import calls, computations, emulated, hlo, shapes
from oracle import assert_same_bits

N = 15
CONTRACT = jo.Contract.moduli(N)
dot = functools.partial(jo.dot, contract=CONTRACT)
product = functools.partial(oracle.product, n=N)
RNG = np.random.default_rng(0)
# phi = 4 data, on which a native product differs in nearly every output.
A, B = generators.operands(RNG, 4, 20, 3, rows=generators.phi(4), columns=generators.phi(4))
DA, DB = generators.operands(RNG, 4, 20, 3, rows=generators.phi(4), columns=generators.phi(4))
CT = RNG.standard_normal((4, 3))


# Derivatives.


def test_native_products_differ_on_this_data():
    """Else equality of bits below would say nothing."""
    assert (np.asarray(jnp.dot(A, B)) != product(A, B)).mean() > 0.5


def test_jvp():
    c, tangent = jax.jvp(dot, (A, B), (DA, DB))
    assert_same_bits(c, product(A, B))
    assert_same_bits(tangent, product(DA, B) + product(A, DB))


def test_linearize():
    c, linear = jax.linearize(dot, A, B)
    assert_same_bits(c, product(A, B))
    assert_same_bits(linear(DA, DB), product(DA, B) + product(A, DB))


def test_vjp_and_grad():
    da, db = jax.grad(lambda a, b: (CT * dot(a, b)).sum(), (0, 1))(A, B)
    assert_same_bits(da, product(CT, B.T))
    assert_same_bits(db, product(A.T, CT))


def test_linear_transpose():
    a, b = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (A, B))
    assert_same_bits(jax.linear_transpose(lambda a: dot(a, B), a)(CT)[0], product(CT, B.T))
    assert_same_bits(jax.linear_transpose(lambda b: dot(A, b), b)(CT)[0], product(A.T, CT))


def quartic(x):
    return (dot(x, x) ** 2).sum()


def native_quartic(x):
    return (jnp.dot(x, x) ** 2).sum()


SECOND = {
    "hessian": jax.hessian,
    "jacfwd(jacfwd)": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jacrev(jacrev)": lambda f: jax.jacrev(jax.jacrev(f)),
    "jacrev(jacfwd)": lambda f: jax.jacrev(jax.jacfwd(f)),
    "grad(grad . v)": lambda f: jax.grad(lambda x: (jax.grad(f)(x) * CT[:3]).sum()),
    "jit": lambda f: jax.jit(jax.hessian(f)),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name):
    x = RNG.standard_normal((3, 3))
    second = SECOND[name]
    np.testing.assert_allclose(second(quartic)(x), second(native_quartic)(x), rtol=1e-12, atol=1e-12)
    assert emulated(second(quartic), x)


def test_second_derivative_of_a_bilinear_form():
    """d2 (sum CT * A B) / dA dB is CT times a delta: exact whatever the data."""
    mixed = jax.jacfwd(jax.grad(lambda a, b: (CT * dot(a, b)).sum()), 1)(A, B)
    expected = np.einsum("ij,hl->ihlj", CT, np.eye(20))
    assert_same_bits(mixed, expected)


@pytest.mark.parametrize("modes", [["fwd"], ["rev"]], ids=str)
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (dot, ((2, 3), (3, 2))),
        (lambda a, b: jo.einsum("bij,bkj->bik", a, b, contract=CONTRACT), ((2, 2, 3), (2, 2, 3))),
        (lambda a, b: jo.dot_general(a, b, (((2, 0), (1, 2)), ((), ()))), ((2, 2, 3), (2, 3, 2))),
        (lambda a, b: jo.matmul(a, b), ((3, 2, 2), (2, 2))),
    ],
)
def test_check_grads(fn, shapes, modes):
    args = [RNG.standard_normal(s) for s in shapes]
    check_grads(fn, args, order=2, modes=modes, rtol=1e-5, atol=1e-5)


DERIVATIVES = {
    "jvp": lambda a, b: jax.jvp(dot, (a, b), (a, b)),
    "grad": jax.grad(lambda a, b: dot(a, b).sum(), (0, 1)),
    "linear_transpose": lambda a, b: jax.linear_transpose(lambda a: dot(a, b), a)(dot(a, b)),
    "grad of matmul": jax.grad(lambda a, b: jo.matmul(a[None], b[None]).sum(), (0, 1)),
    "grad of einsum": jax.grad(lambda a, b: jo.einsum("ij,jk,lk->il", a, b, b).sum(), (0, 1)),
    "grad of vdot": jax.grad(lambda a, b: jo.vdot(a, b.T[:1] * a), (0, 1)),
    "grad of power": jax.grad(lambda a, b: jo.linalg.matrix_power(a[:, :4], 3).sum()),
    "grad of grad": jax.grad(lambda a, b: jax.grad(lambda a: (dot(a, b) ** 2).sum())(a).sum()),
    "vmap": jax.vmap(lambda a, b: jo.matmul(a, b), (0, None)),
    "grad of vmap": jax.grad(lambda a, b: jax.vmap(lambda a: jo.dot(a, b))(a).sum()),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_emulated(name):  # case 17
    assert emulated(DERIVATIVES[name], jnp.asarray(A), jnp.asarray(B))


def test_derivatives_with_respect_to_a_product_with_itself():  # case 21
    x = RNG.standard_normal((4, 4))
    ct = RNG.standard_normal((4, 4))
    grad = jax.grad(lambda x: (ct * dot(x, x)).sum())(x)
    assert_same_bits(grad, product(ct, x.T) + product(x.T, ct))


# Loops and remat.


def test_scan():  # case 18
    """The carry goes through the product; values and gradients are those of the unrolled loop."""
    steps = RNG.standard_normal((5, 4, 4)) / 2

    def scanned(carry, steps):
        return jax.lax.scan(lambda c, s: (dot(s, c), dot(c, s)), carry, steps)

    def unrolled(carry, steps):
        outputs = []
        for s in steps:
            carry, output = dot(s, carry), dot(carry, s)
            outputs.append(output)
        return carry, jnp.stack(outputs)

    for x, y in zip(jax.jit(scanned)(CT[:, :1] * steps[0], steps), unrolled(CT[:, :1] * steps[0], steps), strict=True):
        assert_same_bits(x, y)
    gradients = [jax.grad(lambda s, f=f: f(s[0], s)[0].sum() + f(s[0], s)[1].sum())(steps) for f in (scanned, unrolled)]
    np.testing.assert_allclose(*gradients, rtol=1e-14)


def test_remat():
    def f(a, b):
        return (jnp.sin(dot(a, b)) ** 2).sum()

    for policy in (None, jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.everything_saveable):
        rematerialised = jax.grad(jax.checkpoint(f, policy=policy), (0, 1))
        for x, y in zip(rematerialised(A, B), jax.grad(f, (0, 1))(A, B), strict=True):
            assert_same_bits(x, y)


def test_cond_and_while():
    f = jax.jit(lambda p, a, b: jax.lax.cond(p, lambda: dot(a, b), lambda: jnp.zeros((4, 3))))
    assert_same_bits(f(True, A, B), product(A, B))
    assert_same_bits(f(False, A, B), np.zeros((4, 3)))
    x = RNG.standard_normal((4, 4)) / 2
    power = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, dot(c[1], x)), (0, x))[1]
    assert_same_bits(power, product(product(product(x, x), x), x))


def test_donation():  # case 21
    x, y = RNG.standard_normal((4, 4)), RNG.standard_normal((4, 4))
    f = jax.jit(lambda a, b: dot(a, b) + a, donate_argnums=0)
    for _ in range(3):
        donated = jnp.array(x)
        assert_same_bits(f(donated, y), product(x, y) + x)
        assert donated.is_deleted()
    assert_same_bits(jax.jit(lambda a: dot(a, a), donate_argnums=0)(jnp.array(x)), product(x, x))


# vmap.


@pytest.mark.parametrize(
    "in_axes", [p for p in itertools.product((None, 0, 1, 2, -1), repeat=2) if any(a is not None for a in p)], ids=str
)
def test_vmap_of_every_pair_of_axes(in_axes):  # case 16
    size = 5
    operands = [
        RNG.standard_normal(s if axis is None else (size, *s))
        for s, axis in zip(((4, 6), (6, 3)), in_axes, strict=True)
    ]
    expected = np.stack(
        [
            product(*(x if axis is None else x[i] for x, axis in zip(operands, in_axes, strict=True)))
            for i in range(size)
        ]
    )
    moved = [x if axis is None else np.moveaxis(x, 0, axis) for x, axis in zip(operands, in_axes, strict=True)]
    assert_same_bits(jax.jit(jax.vmap(dot, in_axes))(*moved), expected)
    assert_same_bits(jax.vmap(dot, in_axes, out_axes=1)(*moved), np.moveaxis(expected, 0, 1))


def test_vmap_three_deep():  # case 16
    a, b = RNG.standard_normal((4, 2, 6, 5)), RNG.standard_normal((6, 3, 3, 5))
    f = jax.vmap(jax.vmap(jax.vmap(dot, (0, None)), (None, 2)), (-1, 3))  # a: 5, then 4; b: 5, then 3
    result = np.asarray(jax.jit(f)(a, b))
    assert result.shape == (5, 3, 4, 2, 3)
    for z, y, x in np.ndindex(5, 3, 4):
        assert_same_bits(result[z, y, x], product(a[x, :, :, z], b[:, :, y, z]))


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_of_grad_and_grad_of_vmap(in_axes):  # case 16
    a = RNG.standard_normal((5, *A.shape)) if in_axes[0] == 0 else A
    b = RNG.standard_normal((5, *B.shape)) if in_axes[1] == 0 else B
    da, db = jax.vmap(jax.grad(lambda a, b: (CT * dot(a, b)).sum(), (0, 1)), in_axes)(a, b)
    for i in range(5):
        x, y = (v[i] if axis == 0 else v for v, axis in zip((a, b), in_axes, strict=True))
        assert_same_bits(da[i], product(CT, y.T))
        assert_same_bits(db[i], product(x.T, CT))
    total = jax.grad(lambda a, b: (CT * jax.vmap(dot, in_axes)(a, b)).sum(), (0, 1))(a, b)
    for found, each, axis in zip(total, (da, db), in_axes, strict=True):
        np.testing.assert_allclose(found, each if axis == 0 else each.sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (1, None), (None, 1), (2, None), (None, 2)], ids=str)
def test_an_unmapped_operand_is_not_broadcast(in_axes):  # case 16
    """One bigger product: the unmapped operand keeps its size in every buffer."""
    size, m, k, n = 50, 7, 37, 41
    a, b = [m, k], [k, n]
    for operand, axis in zip((a, b), in_axes, strict=True):
        if axis is not None:
            operand.insert(axis, size)
    text = hlo(jax.vmap(dot, in_axes), jnp.ones(a), jnp.ones(b))
    rows = m if in_axes[0] is None else n
    assert ("u8", (1, N, rows, 48)) in shapes(text)
    for dtype, dims in shapes(text):
        broadcast = {size, rows} <= set(dims) and {k, 48} & set(dims)
        assert not broadcast, (dtype, dims)


def test_large_vmap_has_no_cubic_buffer():  # case 16
    f = jax.jit(jax.vmap(dot, (0, None)))
    text = f.lower(*(jax.ShapeDtypeStruct(s, jnp.float64) for s in ((1000, 3, 1000), (1000, 1000)))).compile().as_text()
    assert max(np.prod(dims) for _, dims in shapes(text)) < 1000**3 / 10


# What the compiled program holds.


def loop_body(text):
    """The instructions of the while loop's body."""
    (name,) = set(re.findall(r"body=%?([\w.\-]+)", text))
    return computations(text)[name]


@pytest.fixture
def hoisting():
    if jax.default_backend() != "cpu":
        pytest.skip("XLA moves custom calls out of loops on the CPU only; prepare does it anywhere")


@pytest.mark.usefixtures("hoisting")
@pytest.mark.parametrize("loop", ["while", "fori", "scan"])
def test_a_loop_quantizes_its_constant_matrix_once(loop):  # case 24
    def step(a, x):
        return dot(a, x) / 8

    def run(a, x):
        if loop == "while":
            return jax.lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, step(a, c[1])), (0, x))[1]
        if loop == "fori":
            return jax.lax.fori_loop(0, 9, lambda _, x: step(a, x), x)
        return jax.lax.scan(lambda x, _: (step(a, x), None), x, length=9)[0]

    text = hlo(run, jnp.ones((24, 24)), jnp.ones(24))
    inside = calls(loop_body(text), "quantize")
    assert len(inside) == 1
    assert "u8[1,15,1,32]" in inside[0]
    outside = [
        c for name, body in computations(text).items() if body is not loop_body(text) for c in calls(body, "quantize")
    ]
    assert sum("u8[1,15,24,32]" in call for call in outside) == 1


@pytest.mark.usefixtures("hoisting")
def test_conjugate_gradients_quantize_the_matrix_once():  # case 24
    spd = RNG.standard_normal((24, 24))
    spd = spd @ spd.T + 24 * np.eye(24)
    rhs = RNG.standard_normal(24)

    def solve(a, b):
        return jax.scipy.sparse.linalg.cg(lambda x: dot(a, x), b, tol=1e-12)[0]

    text = hlo(solve, jnp.asarray(spd), jnp.asarray(rhs))
    assert not any("u8[1,15,24,32]" in call for call in calls(loop_body(text), "quantize"))
    np.testing.assert_allclose(jax.jit(solve)(spd, rhs), np.linalg.solve(spd, rhs), rtol=1e-10)


@pytest.mark.parametrize(
    ("fn", "quantizations"),
    [
        (lambda a, b, c: dot(a, b), 2),
        (lambda a, b, c: (dot(a, b), dot(a, c)), 3),
        (lambda a, b, c: (dot(a, b), dot(a, b)), 2),
        (lambda a, b, c: dot(a, a.T), 1),
        (lambda a, b, c: (dot(a, b), dot(b.T, c)), 3),
        (lambda a, b, c: jax.vjp(lambda a: dot(a, b), a)[1](c), 2),
    ],
)
def test_equal_quantizations_are_merged(fn, quantizations):
    text = hlo(fn, jnp.ones((24, 24)), jnp.ones((24, 24)), jnp.ones((24, 24)))
    assert len(calls(text, "quantize")) == quantizations


def test_lowering_for_several_platforms():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    text = jax.jit(jo.dot).trace(a, b).lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert "stablehlo.case" in text


def test_symbolic_sizes_are_refused_by_name():
    (m,) = jax.export.symbolic_shape("m")
    a, b = jax.ShapeDtypeStruct((m, 4), jnp.float64), jax.ShapeDtypeStruct((4, 5), jnp.float64)
    with pytest.raises(TypeError, match="lhs has the symbolic shape"):
        jax.eval_shape(jo.dot, a, b)
