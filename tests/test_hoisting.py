"""What a loop does not change is quantized once, before it, on every backend."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
import meshes
import oracle
from compiled import calls, computations, emulated, hlo, products
from oracle import assert_same_bits

N = 15
emulate = partial(jo.emulate, contract=jo.Contract.moduli(N), min_size=0)
product = partial(oracle.product, n=N)
RNG = np.random.default_rng(0)
SQUARE = jnp.asarray(RNG.standard_normal((5, 5)) / 3)
SPD = SQUARE @ SQUARE.T + jnp.eye(5)
VECTOR, MATRIX = jnp.asarray(RNG.standard_normal(5)), jnp.asarray(RNG.standard_normal((5, 6)))
TENSOR = jnp.asarray(RNG.standard_normal((3, 4, 3, 4)) / 9)
STACK = jnp.asarray(RNG.standard_normal((3, 5, 5)) / 3)


def quantizations(fn, *args):
    """How many the jaxpr has in all, and how many outside of its loops."""
    jaxpr = jax.make_jaxpr(fn)(*args)
    return str(jaxpr).count("ozaki_quantize["), sum(e.primitive.name == "ozaki_quantize" for e in jaxpr.eqns)


def in_scan(step):
    return lambda a, x: lax.scan(lambda c, _: (step(a, c), None), x, None, length=3)[0]


def in_while(step):
    def run(a, x):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, step(a, c[1])), (0, x))[1]

    return run


def cg(s, b):
    return jax.scipy.sparse.linalg.cg(lambda x: s @ x, b, tol=1e-14)[0]


@jax.custom_jvp
def activation(a, x):
    return jnp.sin(a @ x)


@activation.defjvp
def _(primals, tangents):
    (a, x), (da, dx) = primals, tangents
    return jnp.sin(a @ x), jnp.cos(a @ x) * (da @ x + a @ dx)


@jax.custom_vjp
def layer(a, x):
    return jnp.sin(a @ x)


def layer_forwards(a, x):
    y = a @ x
    return jnp.sin(y), (a, x, jnp.cos(y))


def layer_backwards(residuals, g):
    a, x, cos = residuals
    return jnp.outer(g * cos, x), a.T @ (g * cos)


layer.defvjp(layer_forwards, layer_backwards)


@jax.jit
def closure(c):
    return SQUARE @ c


# name: the step, a constant of the loop, the carry, operands that the loop does not change
STEPS = {
    "recurrence": (jnp.matmul, SQUARE, VECTOR, 1),
    "from the right": (lambda a, c: c @ a, SQUARE, MATRIX.T, 1),
    "transposed": (lambda a, c: a.T @ c, SQUARE, VECTOR, 1),
    "both sides": (lambda a, c: a @ (c @ a), SQUARE, SQUARE, 2),
    "twice": (lambda a, c: a @ (a @ c), SQUARE, VECTOR, 1),
    "power iteration": (lambda a, c: (y := a @ c) / jnp.linalg.norm(y), SPD, VECTOR, 1),
    "computed from a constant": (lambda a, c: (a + 2 * jnp.eye(5)) @ c / 3, SQUARE, VECTOR, 1),
    "a product of constants": (lambda a, c: (a @ a) @ c, SQUARE, VECTOR, 1),
    "jitted": (jax.jit(lambda a, c: jnp.einsum("ij,jk->ik", a, c)), SQUARE, MATRIX, 1),
    "closed over": (lambda a, c: closure(c), SQUARE, VECTOR, 1),
    "two contracted axes": (lambda t, c: jnp.tensordot(t, c, ((2, 3), (0, 1))), TENSOR, TENSOR[0, 0], 1),
    "two, the other way round": (lambda t, c: jnp.tensordot(c, t, ((1, 0), (1, 0))), TENSOR, TENSOR[0, 0], 1),
    "a stack": (lambda t, c: jnp.einsum("bij,bj->bi", t, c), STACK, STACK[0, :3], 1),
    "a stack, batch in the middle": (
        lambda t, c: jnp.einsum("ibj,bi->bj", t.swapaxes(0, 1), c),
        STACK,
        STACK[0, :3],
        1,
    ),
    "a stack, batch last": (lambda t, c: jnp.einsum("jib,bj->bi", jnp.moveaxis(t, 0, 2), c), STACK, STACK[0, :3], 1),
    "a loop in the loop": (lambda a, c: lax.fori_loop(0, 2, lambda i, d: a @ d, c), SQUARE, VECTOR, 1),
    "cond": (lambda a, c: lax.cond(c[0] > 0, lambda a, c: a @ c, lambda a, c: c - a.T @ c, a, c), SQUARE, VECTOR, 2),
    "switch": (
        lambda a, c: lax.switch(jnp.int32(c[0] > 0), [lambda: a @ c, lambda: c, lambda: a.T @ c]),
        SQUARE,
        VECTOR,
        2,
    ),
    # for the loop backwards too, which multiplies by a^T
    "checkpoint": (lambda a, c: jax.checkpoint(lambda c: jnp.sin(a @ c))(c), SQUARE, VECTOR, 2),
    "custom_jvp": (activation, SQUARE, VECTOR, 1),
    "custom_vjp": (layer, SQUARE, VECTOR, 1),
    "conjugate gradients": (cg, SPD, VECTOR, 1),
}

FORWARDS_ONLY = {"cond", "switch", "custom_vjp", "a product of constants"}
"""Steps whose derivatives are quantized in the loop backwards where a program that is emulated already is differentiated:
a branch or a rule written by hand decides there what is multiplied; and a product that left the loop has no loop."""


@pytest.mark.parametrize("loop", [in_scan, in_while])
@pytest.mark.parametrize("name", STEPS)
def test_constants_are_quantized_outside(name, loop):
    step, a, x, count = STEPS[name]
    program = loop(step)
    jaxpr = jax.make_jaxpr(emulate(program))(a, x)
    assert emulated(emulate(program), a, x)
    found, outside = quantizations(emulate(program), a, x)
    assert found == outside == count, jaxpr
    np.testing.assert_allclose(emulate(program)(a, x), program(a, x), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(jax.jit(emulate(jax.jit(program)))(a, x), program(a, x), rtol=1e-9, atol=1e-11)


def cubes(fn):
    return lambda a, x: (fn(a, x) ** 3).sum()


def plain_products(fn, *args):
    """How many multiply operands that are not quantized before."""
    return products(fn, *args).count("ozaki_dot_general")


@pytest.mark.parametrize("name", STEPS)
def test_derivatives_with_respect_to_a_constant(name):
    """Of scan, that all modes differentiate."""
    step, a, x, _ = STEPS[name]
    native = in_scan(step)
    expected = jax.grad(cubes(native), (0, 1))(a, x)
    gradients = jax.grad(cubes(emulate(native)), (0, 1)), emulate(jax.grad(cubes(native), (0, 1)))
    for gradient in gradients:
        assert emulated(gradient, a, x)
        for y, z in zip(gradient(a, x), expected, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-8, atol=1e-8 * float(abs(z).max()))
        found, outside = quantizations(gradient, a, x)
        assert found == outside >= 1
    if name not in FORWARDS_ONLY:  # the loop backwards too multiplies by what is quantized outside
        of_emulated, of_gradient = (plain_products(gradient, a, x) for gradient in gradients)
        assert of_emulated == of_gradient


@pytest.mark.parametrize("name", [name for name in STEPS if name != "custom_vjp"])
def test_tangents_with_respect_to_a_constant(name):
    step, a, x, _ = STEPS[name]
    native, tangents = in_scan(step), (jnp.cos(a), jnp.sin(x))
    expected = jax.jvp(cubes(native), (a, x), tangents)[1]
    np.testing.assert_allclose(jax.jvp(cubes(emulate(native)), (a, x), tangents)[1], expected, rtol=1e-8)


@pytest.mark.parametrize("name", ["recurrence", "both sides", "checkpoint", "custom_jvp", "a loop in the loop"])
def test_second_derivatives(name):
    step, a, x, _ = STEPS[name]
    native = in_scan(step)

    def curvature(fn):
        return lambda a, x: (jax.grad(cubes(fn), (0, 1))(a, x)[0] ** 2).sum()

    expected = jax.grad(curvature(native), (0, 1))(a, x)
    for y, z in zip(jax.grad(curvature(emulate(native)), (0, 1))(a, x), expected, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-8, atol=1e-8 * float(abs(z).max()))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("name", ["recurrence", "from the right", "a stack", "checkpoint", "custom_jvp"])
def test_batches_of_gradients(name, axes):
    step, a, x, _ = STEPS[name]
    native = in_scan(step)
    args = [y if axis is None else jnp.stack([y, -y, y / 2]) for y, axis in zip((a, x), axes, strict=True)]
    expected = jax.vmap(jax.grad(cubes(native), (0, 1)), axes)(*args)
    for y, z in zip(jax.vmap(jax.grad(cubes(emulate(native)), (0, 1)), axes)(*args), expected, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-8, atol=1e-8 * float(abs(z).max()))


def test_gradients_do_not_depend_on_hoisting():
    """Bit for bit; and no residues are stacked up for the loop backwards."""
    native = in_scan(lambda a, c: a @ jnp.sin(c))
    a, x, residues = jnp.tile(SQUARE, (50, 50)) / 50, jnp.tile(VECTOR, 50), N * 250 * 256
    hoisted, within = (jax.grad(cubes(emulate(native, workspace_bytes=size)), (0, 1)) for size in (2**30, residues - 1))
    assert quantizations(hoisted, a, x) == (2, 2) and quantizations(within, a, x) == (0, 0)
    for y, z in zip(hoisted(a, x), within(a, x), strict=True):
        assert_same_bits(y, z)
    text = str(jax.make_jaxpr(hoisted)(a, x))
    assert "u8[15,250,256]" in text and "u8[3," not in text


def test_a_rule_written_by_hand_keeps_no_residues_for_each_iteration():
    """What ``custom_vjp`` multiplies backwards is quantized in the loop backwards."""
    step, a, x, _ = STEPS["custom_vjp"]
    text = str(jax.make_jaxpr(jax.grad(cubes(emulate(in_scan(step)))))(a, x))
    assert "u8[15,5,16]" in text and "u8[3," not in text


# Sharded operands.


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (AxisType.Explicit, P()),
        (AxisType.Explicit, P(None, "y")),
        (AxisType.Explicit, P("x", "y")),
        (AxisType.Auto, P("x", "y")),
    ],
    ids=str,
)
def test_sharded_constants_are_quantized_outside(kind, spec):
    devices = meshes.mesh(kind, x=2, y=2)
    a, x = jnp.tile(SQUARE[:4, :4], (2, 2)) / 3, MATRIX[:4, :4].repeat(2, 0)
    out = P("x", None)

    asked = NamedSharding(devices, out) if kind is AxisType.Explicit else None
    native = in_scan(lambda a, c: jnp.sin(jnp.matmul(a, c, out_sharding=asked)))
    whole = in_scan(lambda a, c: jnp.sin(a @ c))
    expected, unsharded = (whole(a, x), *jax.grad(cubes(whole), (0, 1))(a, x)), emulate(whole)(a, x)
    with jax.set_mesh(devices):
        a, x = meshes.put(devices, (spec, out), (a, x))
        gradient = jax.jit(jax.grad(cubes(emulate(native)), (0, 1)))
        assert quantizations(emulate(native), a, x) == (1, 1)
        assert quantizations(jax.grad(cubes(emulate(native)), (0, 1)), a, x) == (2, 2)
        found = jax.jit(emulate(native))(a, x), *gradient(a, x)
        types = [jax.typeof(y) for y in found]
        assert types == [
            jax.typeof(y) for y in (jax.jit(native)(a, x), *jax.jit(jax.grad(cubes(native), (0, 1)))(a, x))
        ]
    assert_same_bits(found[0], unsharded)
    for y, z in zip(found, expected, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("subscripts", "constant", "variable", "out"),
    [
        ("ijk,kn->ijn", (3, 4, 6), P(None, "x"), P(None, None, "x")),
        ("bk,bkn->bn", (3, 6), P(None, None, "x"), P(None, "x")),
    ],
)
def test_out_sharding_is_that_of_the_product_as_it_is(subscripts, constant, variable, out):
    """Preparing a constant would make two axes of these products one, or add one."""
    devices = meshes.mesh(AxisType.Explicit, x=2)
    rng = np.random.default_rng(3)
    a, x = rng.random(constant), rng.random((3, 6, 8)[3 - len(variable) :])

    def loop(a, x):
        def step(c, _):
            y = jnp.einsum(subscripts, a, c, out_sharding=NamedSharding(devices, out))
            return c / (1 + jnp.sum(y)), None

        return jax.lax.scan(step, x, None, length=3)[0]

    with jax.set_mesh(devices):
        operands = meshes.put(devices, (P(), variable), (a, x))
        for f in (lambda f: f, lambda f: jax.grad(cubes(f), (0, 1))):
            found, expected = jax.jit(f(emulate(loop)))(*operands), jax.jit(f(loop))(*operands)
            for y, z in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                assert jax.typeof(y) == jax.typeof(z)
                np.testing.assert_allclose(y, z, rtol=1e-9, atol=1e-11)


def test_constants_in_shard_map_are_quantized_outside():
    devices = meshes.mesh(x=2)
    native = in_scan(lambda a, c: jnp.sin(a @ c))
    mapped = partial(jax.shard_map, mesh=devices, in_specs=(P(), P(None, "x")), out_specs=P(None, "x"))
    gradient = jax.grad(cubes(emulate(mapped(native))), (0, 1))
    text = str(jax.make_jaxpr(gradient)(SQUARE, MATRIX))
    assert text.count("ozaki_quantize[") == 2 and "ozaki_prepared_dot_general" in text
    expected = jax.grad(cubes(native), (0, 1))(SQUARE, MATRIX)
    for y, z in zip(jax.jit(gradient)(SQUARE, MATRIX), expected, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("name", ["recurrence", "two contracted axes", "a stack, batch last", "cond", "custom_jvp"])
def test_batches_of_loops(name, axes):
    step, a, x, _ = STEPS[name]
    program = in_scan(step)
    args = [y if axis is None else jnp.stack([y, -y, y / 2]) for y, axis in zip((a, x), axes, strict=True)]
    expected = jax.vmap(program, axes)(*args)
    np.testing.assert_allclose(jax.vmap(emulate(program), axes)(*args), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(emulate(jax.vmap(program, axes))(*args), expected, rtol=1e-9, atol=1e-11)


def test_bits():
    found = emulate(in_scan(lambda a, c: a.T @ c))(SQUARE, MATRIX)
    expected = np.asarray(MATRIX)
    for _ in range(3):
        expected = product(np.asarray(SQUARE).T, expected)
    assert_same_bits(found, expected)


def loop_bodies(text):
    return [computations(text)[name] for name in set(re.findall(r"body=%?([\w.\-]+)", text))]


@pytest.mark.parametrize("name", ["recurrence", "jitted", "cond", "conjugate gradients"])
def test_compiled_loops_quantize_only_what_changes(name):
    step, a, x, count = STEPS[name]
    text = hlo(emulate(in_while(step)), a, x)
    constant = {f"u8[1,{N},5,16]"}
    for body in loop_bodies(text):
        assert not any(shape in call for call in calls(body, "quantize") for shape in constant)
    outside = [call for call in calls(computations(text)["ENTRY"], "quantize") if f"u8[1,{N},5,16]" in call]
    assert len(outside) == count


def test_a_fixed_matrix_in_purification():
    """X <- (X S) X with a fixed overlap S: S is quantized once, X each time."""
    program = lambda s, x: lax.fori_loop(0, 4, lambda i, x: (x @ s) @ x, x)  # noqa: E731
    assert quantizations(emulate(program), SPD, SQUARE) == (1, 1)


def test_what_changes_is_not_hoisted():
    program = lambda xs: lax.scan(lambda c, x: (x @ c, c @ c), SQUARE, xs)  # noqa: E731
    assert quantizations(emulate(program), STACK) == (0, 0)


def test_nothing_beyond_the_workspace_is_held():
    big = jnp.ones((256, 256))
    program, residues = in_scan(jnp.matmul), N * 256 * 256
    assert quantizations(emulate(program, workspace_bytes=4 * residues), big, big) == (1, 1)
    assert quantizations(emulate(program, workspace_bytes=residues - 1), big, big) == (0, 0)
    np.testing.assert_array_equal(
        emulate(program, workspace_bytes=4 * residues)(big, big),
        emulate(program, workspace_bytes=residues - 1)(big, big),
    )


def test_effects_stay_in_their_loop():
    seen = []

    def step(c, _):
        jax.debug.callback(lambda x: seen.append(float(x)), c.sum(), ordered=True)
        return SQUARE @ c, None

    program = lambda x: lax.scan(step, x, None, length=3)[0]  # noqa: E731
    assert quantizations(emulate(program), VECTOR) == (1, 1)
    emulate(program)(VECTOR)
    jax.effects_barrier()
    assert len(seen) == 3
