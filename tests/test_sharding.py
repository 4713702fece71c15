"""Products over a mesh of fake devices: shards of batch, m and n stay local, and no bit changes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from generators import fractions

DEVICES = 4


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    return fractions(rng, (8, 12, 20)), fractions(rng, (8, 20, 16))


def mesh(axis_type, **sizes):
    """A mesh of ``DEVICES`` devices, by default along one axis x."""
    if len(jax.devices()) < DEVICES:
        pytest.skip(f"needs {DEVICES} devices")
    sizes = sizes or {"x": DEVICES}
    types = (axis_type,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types, devices=jax.devices()[:DEVICES])


LOCAL = {
    "batch": (P("x"), P("x"), P("x")),
    "m": (P(None, "x"), P(), P(None, "x")),
    "n": (P(), P(None, None, "x"), P(None, None, "x")),
}


@pytest.mark.parametrize("axis", LOCAL)
def test_sharded_operands_stay_local(operands, axis):  # case 19
    devices = mesh(AxisType.Auto)
    *specs, result_spec = LOCAL[axis]
    a, b = (jax.device_put(x, NamedSharding(devices, spec)) for x, spec in zip(operands, specs, strict=True))
    matmul = jax.jit(jo.matmul)
    c = matmul(a, b)
    assert "all-gather" not in matmul.lower(a, b).compile().as_text()
    assert c.sharding.is_equivalent_to(NamedSharding(devices, result_spec), c.ndim)
    np.testing.assert_array_equal(c, jo.matmul(*operands))


def test_sharded_contraction_is_gathered_not_split(operands):
    # A partition rule that kept the operands' own shardings would multiply parts of k only.
    devices = mesh(AxisType.Auto)
    a = jax.device_put(operands[0], NamedSharding(devices, P(None, None, "x")))
    b = jax.device_put(operands[1], NamedSharding(devices, P(None, "x")))
    np.testing.assert_array_equal(jax.jit(jo.matmul)(a, b), jo.matmul(*operands))


@pytest.mark.parametrize("axis", LOCAL)
def test_gradients_of_sharded_operands(operands, axis):
    devices = mesh(AxisType.Auto)
    gradient = jax.grad(lambda a, b: (jo.matmul(a, b) ** 2).sum(), (0, 1))
    sharded = [jax.device_put(x, NamedSharding(devices, s)) for x, s in zip(operands, LOCAL[axis], strict=False)]
    for x, y in zip(jax.jit(gradient)(*sharded), gradient(*operands), strict=True):
        np.testing.assert_array_equal(x, y)


def test_explicit_mesh_follows_lax(operands):
    devices = mesh(AxisType.Explicit)
    with jax.set_mesh(devices):
        a, b = (jax.device_put(x, NamedSharding(devices, P("x"))) for x in operands)
        assert jax.typeof(jax.jit(jo.matmul)(a, b)).sharding == jax.typeof(jax.jit(jnp.matmul)(a, b)).sharding
        contracted = (
            jax.device_put(operands[0][0], NamedSharding(devices, P(None, "x"))),
            jax.device_put(operands[1][0], NamedSharding(devices, P("x"))),
        )
        for matmul in (jnp.matmul, jo.matmul):
            with pytest.raises(Exception, match="Contracting dimensions are sharded"):
                jax.jit(matmul)(*contracted)


def test_scan_in_shard_map(operands):  # case 18
    devices = mesh(AxisType.Auto)
    x, square = operands[0][:, 0, :12], operands[0][0, :, :12]

    @partial(jax.shard_map, mesh=devices, in_specs=(P("x"), P()), out_specs=P("x"))
    def power(x, square):
        return jax.lax.scan(lambda carry, _: (jo.matmul(carry, square), None), x, None, length=3)[0]

    expected = x
    for _ in range(3):
        expected = jo.matmul(expected, square)
    np.testing.assert_array_equal(jax.jit(power)(x, square), expected)


@pytest.mark.parametrize(
    ("lhs_spec", "rhs_spec"), [(P("x"), P()), (P(), P(None, "x")), (P("x"), P(None, "y")), (P(("x", "y")), P())]
)
def test_gradients_on_an_explicit_mesh_follow_lax(operands, lhs_spec, rhs_spec):
    devices = mesh(AxisType.Explicit, x=2, y=2)
    with jax.set_mesh(devices):
        a = jax.device_put(operands[0][0], NamedSharding(devices, lhs_spec))
        b = jax.device_put(operands[1][0], NamedSharding(devices, rhs_spec))
        emulated, native = (
            jax.grad(lambda a, b, matmul=matmul: (matmul(a, b) ** 2).sum(), (0, 1))(a, b)
            for matmul in (jo.matmul, jnp.matmul)
        )
    for x, y in zip(emulated, native, strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_mapped_out_sharding_follows_lax(operands):
    devices = mesh(AxisType.Explicit, x=2, y=2)
    with jax.set_mesh(devices):
        a, b = (jax.device_put(x, NamedSharding(devices, P("x"))) for x in operands)
        emulated, native = (
            jax.vmap(lambda a, b, matmul=matmul: matmul(a, b, out_sharding=P(None, "y")))(a, b)
            for matmul in (jo.matmul, jnp.matmul)
        )
    assert jax.typeof(emulated) == jax.typeof(native)
