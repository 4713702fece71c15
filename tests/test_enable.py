"""enable: products emulated where they are lowered, inside the block and nowhere else."""

import functools
import os
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import generators
import jax_ozaki as jo
import oracle
from oracle import assert_same_bits

N = 15
CONTRACT = jo.Contract.moduli(N)
enable = functools.partial(jo.enable, CONTRACT, min_size=0)
product = functools.partial(oracle.product, n=N)
RNG = np.random.default_rng(0)
A, B = (jnp.asarray(x) for x in generators.operands(RNG, 9, 20, 9, rows=generators.phi(4), columns=generators.phi(4)))
NATIVE, EMULATED = np.asarray(jnp.dot(A, B)), product(np.asarray(A), np.asarray(B))


def counts(lowered):
    """Native and emulated products in a lowered program."""
    text = lowered.as_text()
    return text.count("stablehlo.dot_general"), text.count("@jax_ozaki.grouped_mma.v1")


def test_native_products_differ_on_this_data():
    assert (NATIVE != EMULATED).any()


def test_inside_and_outside():
    program = jax.jit(lambda a, b: jnp.dot(a, b))
    for _ in range(2):
        assert_same_bits(program(A, B), NATIVE)
        with enable():
            assert_same_bits(program(A, B), EMULATED)
            assert_same_bits(jnp.dot(A, B), EMULATED)
            assert_same_bits(lax.dot(A, B), EMULATED)
            with jo.enable(jo.Contract.moduli(9), min_size=0):
                assert_same_bits(program(A, B), oracle.product(np.asarray(A), np.asarray(B), n=9))
            assert_same_bits(program(A, B), EMULATED)
            with jo.enable(jo.Contract.native()):
                assert_same_bits(program(A, B), NATIVE)
    with enable() as block, block:
        assert_same_bits(program(A, B), EMULATED)
    assert_same_bits(program(A, B), NATIVE)


def test_decorated_functions():
    """In several threads at once, too; not within jit."""
    inside = threading.Barrier(3, timeout=60)

    @enable()
    def program(a, b):
        "Multiply."
        inside.wait()
        return jnp.dot(a, b)

    def work(found):
        found += [program(A, B), jnp.dot(A, B)]

    founds = [[] for _ in range(3)]
    threads = [threading.Thread(target=work, args=(found,)) for found in founds]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    for emulated, native in founds:
        assert_same_bits(emulated, EMULATED)
        assert_same_bits(native, NATIVE)
    assert (program.__name__, program.__doc__) == ("program", "Multiply.")
    with pytest.raises(RuntimeError, match="while jax is tracing"):
        jax.jit(program)(A, B)


def test_what_cannot_be_decorated():
    def generator():
        yield jnp.dot(A, B)

    async def coroutine():
        return jnp.dot(A, B)

    async def generator_of_coroutine():
        yield jnp.dot(A, B)

    for fn in (generator, coroutine, generator_of_coroutine):
        with pytest.raises(TypeError, match="its body runs after the call"):
            enable()(fn)
    with pytest.raises(TypeError, match="fn=3: a function is needed"):
        enable()(3)


def test_default_contract_and_errors_of_the_block():
    with pytest.raises(KeyError), enable():
        raise KeyError
    assert_same_bits(jnp.dot(A, B), NATIVE)
    with jo.default_contract(jo.Contract.moduli(9)), jo.enable(min_size=0):
        assert_same_bits(jnp.dot(A, B), oracle.product(np.asarray(A), np.asarray(B), n=9))


def test_smaller_products_stay_native():
    with jo.enable(CONTRACT, min_size=12):
        assert counts(jax.jit(jnp.dot).lower(A, B)) == (1, 0)
    with jo.enable(CONTRACT, min_size=10):
        assert counts(jax.jit(jnp.dot).lower(A, B)) == (0, 1)


def test_derivatives_and_loops():
    def loss(a, b):
        return lax.fori_loop(0, 2, lambda i, c: c @ (a @ b), a @ b).sum()

    expected = jax.grad(loss)(A / 1e3, B / 1e3)
    with enable():
        lowered = jax.jit(jax.grad(loss)).lower(A, B)
        found = jax.grad(loss)(A / 1e3, B / 1e3)
    assert counts(lowered)[0] == 0
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * float(abs(expected).max()))


def test_products_that_lowering_creates():
    """symmetric_product multiplies, but no jaxpr shows it."""
    program = jax.jit(lambda a: lax.linalg.symmetric_product(a, jnp.zeros((9, 9)), symmetrize_output=False))
    with enable():
        assert counts(program.lower(A)) == (0, 1)
        assert_same_bits(program(A), product(np.asarray(A), np.asarray(A).T))
    assert counts(program.lower(A)) == (1, 0)


def test_other_dtypes_stay():
    with enable():
        for dtype in (np.float32, np.int32):
            assert counts(jax.jit(jnp.dot).lower(A.astype(dtype), B.astype(dtype))) == (1, 0)


def test_explicit_native_products_stay():
    native = functools.partial(jo.dot, contract=jo.Contract.native())
    with enable():
        assert counts(jax.jit(native).lower(A, B)) == (1, 0)
        assert counts(jax.jit(jax.grad(lambda a, b: native(a, b).sum(), (0, 1))).lower(A, B))[1] == 0
        assert_same_bits(native(A, B), NATIVE)


def test_explicit_products_keep_their_contract():
    with enable():
        result = jo.dot(A, B, contract=jo.Contract.moduli(9))
    assert_same_bits(result, oracle.product(np.asarray(A), np.asarray(B), n=9))


@pytest.mark.parametrize("transformation", [jax.jit, jax.grad, jax.vmap, jax.make_jaxpr, jo.emulate])
def test_entering_while_tracing_raises(transformation):
    def traced(x):
        with enable():
            return (x @ x).sum()

    with pytest.raises(RuntimeError, match=r"while jax is tracing.*use jax_ozaki\.emulate"):
        transformation(traced)(jnp.ones((2, 2)) if transformation is not jax.vmap else jnp.ones((2, 2, 2)))
    with pytest.raises(RuntimeError, match="while jax is tracing"):
        lax.fori_loop(0, 2, lambda i, x: traced(x) * x, jnp.ones((2, 2)))
    with enable():  # nothing was left behind
        pass
    assert_same_bits(jnp.dot(A, B), NATIVE)


def test_what_counts_is_where_a_program_is_lowered():
    with enable():
        _, vjp = jax.vjp(jnp.dot, A, B)
        traced = jax.jit(jnp.dot).trace(A, B)
        inside = traced.lower()
    ct = jnp.ones((9, 9))
    assert_same_bits(vjp(ct)[0], jnp.dot(ct, B.T))  # native outside
    with enable():
        assert_same_bits(vjp(ct)[0], product(np.ones((9, 9)), np.asarray(B).T))
    assert counts(inside) == (0, 1)
    assert counts(traced.lower()) == (1, 0)
    with enable():
        assert counts(traced.lower()) == (0, 1)
    assert_same_bits(inside.compile()(A, B), EMULATED)


def test_the_switch_is_thread_local():
    found = []
    with enable():
        thread = threading.Thread(target=lambda: found.append(np.asarray(jnp.dot(A, B))))
        thread.start()
        thread.join()
    assert_same_bits(found[0], NATIVE)


def test_lowering_for_several_platforms():
    program = jax.jit(lambda a, b: jnp.dot(a, b) + 1)
    with enable():
        text = program.trace(A, B).lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert "stablehlo.case" in text and "dot_general" not in text


def test_meshes():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("x", None))
    a = jax.device_put(RNG.standard_normal((8, 20)), rows)
    with enable():
        result = jax.jit(jnp.dot)(a, B)
        hidden = jax.jit(lambda a: lax.linalg.symmetric_product(a, jnp.zeros((8, 8)), symmetrize_output=False))(a)
        whole = jax.jit(
            jax.shard_map(lambda a, b: a @ b, mesh=mesh, in_specs=(rows.spec, PartitionSpec()), out_specs=rows.spec)
        )(a, B)
    assert result.sharding.is_equivalent_to(rows, 2)
    assert_same_bits(result, product(np.asarray(a), np.asarray(B)))
    assert_same_bits(whole, product(np.asarray(a), np.asarray(B)))
    assert_same_bits(hidden, product(np.asarray(a), np.asarray(a).T))


def test_the_reference_multiplies_natively_inside():
    """A platform without handlers gets the reference, which has float64 products of its own."""
    with enable():
        text = jax.jit(jnp.dot).trace(A, B).lower(lowering_platforms=("tpu",)).as_text()
    assert "stablehlo.dot_general" in text


# Processes.


LOWER = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
{}
def f(a, b):
    c = jax.lax.fori_loop(0, 2, lambda i, c: c @ a.T @ a, a @ b)
    return jnp.linalg.inv(c @ c.T + jnp.eye(3)) + jnp.einsum("ij,jk,kl->il", a, b, c.astype(jnp.float32).T)
a, b = np.ones((3, 4)), np.ones((4, 4))
print(jax.jit(jax.value_and_grad(lambda a, b: f(a, b).sum())).lower(a, b).as_text())
print(jax.jit(f).trace(a, b).lower(lowering_platforms=("cpu", "cuda")).as_text())
"""


def run(code, **environment):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_are_lowered_as_without_the_package():
    native = run(LOWER.format(""))
    assert "dot_general" in native
    assert run(LOWER.format("import jax_ozaki")) == native
    assert run(LOWER.format("import jax_ozaki\nwith jax_ozaki.enable(): jnp.dot(jnp.ones((3, 3)), 1)")) == native
    assert "dot_general" not in re.sub(r".*f32.*", "", run(LOWER.format("import jax_ozaki"), JAX_OZAKI_ENABLE="1"))


PROCESS = "import jax, jax_ozaki, jax.numpy as jnp; jax.config.update('jax_enable_x64', True); \
print(jax.jit(jnp.dot).lower(jnp.ones((3, 3)), jnp.ones((3, 3))).as_text())"


def test_environment():
    assert "14 : i64" in run(PROCESS, JAX_OZAKI_ENABLE="1", JAX_OZAKI_CONTRACT="moduli(14)")
    assert "dot_general" in run(PROCESS, JAX_OZAKI_ENABLE="0")
    with pytest.raises(AssertionError, match="JAX_OZAKI_ENABLE='yes': 1 or 0 is needed"):
        run(PROCESS, JAX_OZAKI_ENABLE="yes")


def test_bad_arguments():
    with pytest.raises(ValueError, match="min_size=-1"):
        jo.enable(min_size=-1)
    with pytest.raises(TypeError, match="contract=3"):
        jo.enable(3)
