"""Products inside shard_map: every one is of the local arrays, typed by the axes over which it varies."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from compiled import products, unconditional
from generators import fractions, operands, phi
from meshes import mesh, put, run
from oracle import assert_same_bits


@pytest.fixture
def matrices():
    return tuple(map(jnp.asarray, operands(np.random.default_rng(0), 16, 12, 8)))


@pytest.fixture(params=[True, False], ids=["check_vma", "unchecked"])
def mapped(request):
    """shard_map of rows over four devices, the second operand replicated."""
    options = {"mesh": mesh(), "in_specs": (P("x"), P()), "out_specs": P("x")}
    return lambda fn, **more: jax.shard_map(fn, **(options | {"check_vma": request.param} | more))


def prepared_rhs(a, b):
    return jo.matmul(a, jo.prepare(b, "rhs"))


def prepared_lhs(a, b):
    return jo.matmul(jo.prepare(a), b)


@pytest.mark.parametrize("product", [jo.matmul, prepared_rhs, prepared_lhs])
def test_varying_and_replicated_operands(mapped, matrices, product):
    assert_same_bits(jax.jit(mapped(product))(*matrices), jo.matmul(*matrices))
    name = "ozaki_dot_general" if product is jo.matmul else "ozaki_prepared_dot_general"
    assert products(mapped(product), *matrices) == [name]


def test_types_follow_lax(matrices):
    def types(matmul):
        seen = []

        def fn(a, b):
            seen.extend(jax.typeof(x) for x in (matmul(a, b), matmul(b, b.T), matmul(b, a.T)))
            return matmul(a, b)

        jax.make_jaxpr(jax.shard_map(fn, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x")))(*matrices)
        return seen

    matrices = matrices[0], fractions(np.random.default_rng(1), (12, 12))
    assert types(jo.matmul) == types(jnp.matmul)


def test_quantized_leaves_vary_with_their_array(matrices):
    def leaves(a, b):
        assert all(jax.typeof(x).manual_axis_type.varying == {"x"} for x in jax.tree.leaves(jo.prepare(a)))
        assert all(not jax.typeof(x).manual_axis_type.varying for x in jax.tree.leaves(jo.prepare(b)))
        return jo.matmul(a, b, contract=jo.Contract.normwise(2), return_report=True)[1].achieved[None]

    achieved = jax.shard_map(leaves, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x"))(*matrices)
    rows = jnp.split(matrices[0], 4)
    reports = [jo.matmul(a, matrices[1], contract=jo.Contract.normwise(2), return_report=True)[1] for a in rows]
    assert achieved.tolist() == [float(report.achieved) for report in reports]


@pytest.mark.parametrize("product", [jo.matmul, prepared_rhs])
def test_scan_carries_are_typed(mapped, product):  # case 18
    rng = np.random.default_rng(2)
    x, square = fractions(rng, (8, 12)), fractions(rng, (12, 12))

    def power(x, square):
        return jax.lax.scan(lambda carry, _: (product(carry, square), None), x, None, length=3)[0]

    assert_same_bits(jax.jit(mapped(power))(x, square), power(x, square))


@pytest.mark.parametrize("product", [jo.matmul, prepared_rhs])
def test_gradients(mapped, matrices, product):
    def pulled(fn, w):
        return jax.jit(lambda a, b: jax.vjp(fn, a, b)[1](w))(*matrices)

    w = fractions(np.random.default_rng(3), (16, 8))
    (a, b), (whole_a, whole_b) = pulled(mapped(product), w), pulled(jo.matmul, w)
    assert_same_bits(a, whole_a)
    np.testing.assert_allclose(b, whole_b, rtol=1e-13, atol=1e-13)  # jax sums the devices' parts in float64


def test_gradients_inside(mapped, matrices):
    def gradient(matmul, a, b):
        return jax.grad(lambda b: jax.lax.psum((matmul(a, b) ** 2).sum(), "x"))(b)[None]

    emulated, native = (jax.jit(mapped(partial(gradient, matmul)))(*matrices) for matmul in (jo.matmul, jnp.matmul))
    np.testing.assert_allclose(emulated, native, rtol=1e-12)


def test_jvp(mapped, matrices):
    tangents = tuple(x[::-1] for x in matrices)
    emulated = jax.jit(lambda: jax.jvp(mapped(jo.matmul), matrices, tangents))()
    for x, y in zip(emulated, jax.jit(lambda: jax.jvp(jo.matmul, matrices, tangents))(), strict=True):
        assert_same_bits(x, y)


@pytest.mark.parametrize("specs", [(P("x", "y"), P("x")), (P("x", None, "y"), P("x", "y"))])
@pytest.mark.parametrize("named", [True, False])
def test_axes_left_to_the_compiler(specs, named):
    """x is manual, y is not: shards of m, and of k, stay where they are."""
    rng = np.random.default_rng(4)
    a, b = phi(2)(rng, (2, 8, 2 * 200)), phi(2)(rng, (2, 2 * 200, 6))
    devices = mesh(AxisType.Auto, x=2, y=2)
    with jax.set_mesh(devices):
        fn = jax.shard_map(
            jo.matmul, mesh=devices if named else None, in_specs=(P("x"), P("x")), out_specs=P("x"), axis_names={"x"}
        )
        c, text = run(fn, devices, specs, (a, b))
    assert "all-gather" not in unconditional(text)
    assert_same_bits(c, jo.matmul(a, b))


def test_export(matrices):
    fn = jax.jit(jax.shard_map(jo.matmul, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x")))
    exported = jax.export.export(fn, disabled_checks=jo.export_checks())(*matrices)
    assert exported.nr_devices == 4
    arrays = put(mesh(), (P("x"), P()), matrices)
    assert_same_bits(jax.jit(exported.call)(*arrays), jo.matmul(*matrices))
