"""Cases from the field that no other file covers: large batches, fresh processes, failing handlers.

Where the others are: 1 3 4 7 8 10 11 12 test_definition; 2 test_contracts; 5 6 test_special_values;
13 14 15 test_dtypes; 16 17 21 24 test_transforms; 18 19 test_sharding; 20 test_functions and test_layouts;
22 test_reference.
"""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
import ladder_oracle
from oracle import assert_same_bits

PROLOGUE = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
"""


def in_fresh_process(program, **environment):
    """The output of a program that fails on its own asserts."""
    program = PROLOGUE + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_more_batches_than_a_grid_dimension():  # case 9
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, 70000, 3, 3))
    c = np.asarray(jo.matmul(a, b))
    for i in (0, 1, 65534, 65535, 65536, 69999):
        assert_same_bits(c[i], ladder_oracle.default_product(a[i], b[i]))
    np.testing.assert_allclose(c, a @ b, rtol=0, atol=1e-13)


def test_double_vmap_of_many():  # case 9
    rng = np.random.default_rng(10)
    a, b = rng.standard_normal((2, 4, 65536, 2, 2))
    c = np.asarray(jax.jit(jax.vmap(jax.vmap(jo.dot)))(a, b))
    for i, j in ((0, 0), (3, 65535), (2, 40000)):
        assert_same_bits(c[i, j], ladder_oracle.default_product(a[i, j], b[i, j]))
    np.testing.assert_allclose(c, a @ b, rtol=0, atol=1e-13)


def test_two_processes_and_thread_counts_give_the_same_bits():  # case 10
    program = """
    import jax_ozaki as jo
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 150, 150)) * np.exp(2 * rng.standard_normal((2, 150, 150)))
    print(np.asarray(jo.dot(a, b)).tobytes().hex())
    """
    outputs = {in_fresh_process(program, XLA_FLAGS=flags) for flags in ("", "--xla_cpu_multi_thread_eigen=false")}
    assert len(outputs) == 1


@pytest.fixture
def mesh():
    devices = jax.devices()[:4]
    if len(devices) < 4:
        pytest.skip("needs four devices")
    return jax.sharding.Mesh(np.array(devices), ("x",))


def put(mesh, x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def test_scan_inside_shard_map(mesh):  # case 18
    rng = np.random.default_rng(0)
    steps, start = rng.standard_normal((8, 3, 6, 6)) / 3, rng.standard_normal((8, 6, 2))
    shared = rng.standard_normal((6, 6)) / 3

    def chain(steps, start, shared):
        def step(x, s):
            x = jo.matmul(s, jo.matmul(shared, x))
            return x, x.sum()

        return jax.vmap(lambda s, x: jax.lax.scan(step, x, s))(steps, start)

    sharded = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=(P("x"), P("x"), P()), out_specs=P("x"), check_vma=True))
    for x, y in zip(sharded(steps, start, shared), chain(steps, start, shared), strict=True):
        assert_same_bits(x, y)
    gradients = [
        jax.grad(lambda *args, f=f: (f(*args)[0] ** 2).sum(), (0, 1, 2))(steps, start, shared) for f in (sharded, chain)
    ]
    for x, y in zip(*gradients, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def test_out_sharding(mesh):
    explicit = jax.sharding.Mesh(mesh.devices, ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((8, 12, 16)), rng.standard_normal((8, 16, 20))
    with jax.set_mesh(explicit):
        sharded = put(explicit, a, "x"), put(explicit, b, "x")
        c = jo.einsum("bij,bjk->bik", *sharded, out_sharding=P("x"))
        assert jax.typeof(c) == jax.typeof(jnp.matmul(*sharded))
    assert_same_bits(c, jo.matmul(a, b))


def test_exported_program_in_a_fresh_process(tmp_path):  # case 23
    pytest.importorskip("flatbuffers")
    x = np.random.default_rng(0).standard_normal((5, 5))
    product = jax.jit(lambda x: jo.dot(x, x))
    exported = jax.export.export(product, disabled_checks=jo.export_checks())(jnp.asarray(x))
    (tmp_path / "program").write_bytes(exported.serialize())
    np.save(tmp_path / "x.npy", x)
    in_fresh_process(
        f"""
        import jax_ozaki
        from jax import export
        program = export.deserialize(open({str(tmp_path / "program")!r}, "rb").read())
        x = np.load({str(tmp_path / "x.npy")!r})
        np.save({str(tmp_path / "y.npy")!r}, program.call(x))
        """
    )
    assert_same_bits(np.load(tmp_path / "y.npy"), jo.dot(x, x))


def test_cached_program_in_a_fresh_process(tmp_path):  # case 23
    program = """
    import jax_ozaki as jo
    from jax._src import monitoring
    hits = []
    monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
    x = np.random.default_rng(0).standard_normal((5, 5))
    print(np.asarray(jax.jit(lambda x: jo.dot(x, x))(x)).tobytes().hex(), len(hits) > 0)
    """
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first, second = (in_fresh_process(program, **cache).split() for _ in range(2))
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("False", "True")


def test_an_error_in_a_handler_names_its_cause(tmp_path):  # case 25
    """A wrong layout is a message, and the next product works."""
    x = jnp.ones((4, 5))
    layout = {"batch": 1, "rows": 4, "k": 7, "stride_b": 28, "stride_r": 7, "stride_k": 1}
    layout |= {"fewer_moduli": 3, "most_rounded": 0}
    types = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((1, 3, 4, 16), jnp.uint8), ((1, 4), jnp.int32), ((1, 4, 7), jnp.int64), ((0,), jnp.uint8))
    ]
    call = jax.ffi.ffi_call("jax_ozaki.quantize.v1", types)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*\bk\b|INVALID_ARGUMENT.*layout|INVALID_ARGUMENT.*element"
    ):
        jax.block_until_ready(call(x, **{name: np.int64(value) for name, value in layout.items()}))
    assert_same_bits(jo.dot(x, x.T), np.full((4, 4), 5.0))


@pytest.mark.parametrize("stage", ["stats", "quantize", "residues", "grouped_mma", "combine"])
def test_handlers_check_their_operands(stage):  # case 25
    """Operands of no sensible shape are refused, never read out of bounds."""
    u8, f64, s32, s64 = jnp.uint8, jnp.float64, jnp.int32, jnp.int64
    rows = [((1, 4), s32), ((1, 4, 7), s64), ((0,), u8)]
    layout = dict.fromkeys(("batch", "rows", "k", "stride_b", "stride_r", "stride_k"), 4)
    scaled = {"fewer_moduli": 15, "most_rounded": 0, **layout}
    strides = dict.fromkeys((f"{x}_stride_{axis}" for x in "ab" for axis in "brk"), 4)
    operands, results, attributes = {
        "stats": ([((2, 2), f64)], rows, {"moduli": 15, **scaled}),
        "quantize": ([((2, 2), f64)], [((1, 15, 4, 16), u8), *rows], scaled),
        "residues": ([((2, 2), f64), ((1, 4), s32)], [((1, 15, 4, 16), u8)], layout),
        "grouped_mma": ([((1, 15, 4, 16), u8), ((1, 15, 4, 32), u8)], [((1, 15, 4, 16), u8)], {}),
        "combine": ([((1, 15, 4, 16), u8), ((1, 4), s32), ((1, 9), s32), ((2, 2), f64), ((2, 2), f64)], [((1, 4, 4), f64)], {"moduli": 15, "k": 4, **strides}),
    }[stage]  # fmt: skip
    call = jax.ffi.ffi_call(f"jax_ozaki.{stage}.v1", [jax.ShapeDtypeStruct(*x) for x in results])
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT"):
        jax.block_until_ready(
            call(*(jnp.zeros(*x) for x in operands), **{name: np.int64(v) for name, v in attributes.items()})
        )


CERTIFY_RESULTS = {
    "rung": ((1, 4, 16), "uint8"),
    "tiles": ((1, 1, 1), "uint32"),
    "worst": ((1, 1, 1), "float32"),
    "count": ((1,), "int32"),
    "wide_count": ((1,), "int32"),
    "wide_scale_a": ((1, 4), "int32"),
    "wide_scale_b": ((1, 9), "int32"),
    "scratch": ((0,), "uint8"),
}


def certify(**wrong):
    """The handler's results for zeros, with other attributes or other shapes of results."""
    shapes = {name: shape for name, shape in wrong.items() if name in CERTIFY_RESULTS}
    results = [jax.ShapeDtypeStruct(shapes.get(name, shape), dtype) for name, (shape, dtype) in CERTIFY_RESULTS.items()]
    attributes = {"n": 9, "k": 5, "moduli": 15, "fewer_moduli": 15, "wide_moduli": 20} | wrong
    rows, columns = ((jnp.zeros((1, count), jnp.int32), jnp.zeros((1, count, 8), jnp.int64)) for count in (4, 9))
    found = jax.ffi.ffi_call("jax_ozaki.certify.v1", results)(
        jnp.zeros((1, 1, 4, 16), jnp.int32),
        *rows,
        *columns,
        **{name: np.int64(value) for name, value in attributes.items() if name not in shapes},
        tau_half=np.float32(1),
    )
    return dict(zip(CERTIFY_RESULTS, jax.block_until_ready(found), strict=True))


def test_certify_by_hand():
    found = certify()
    assert found["count"] == found["wide_count"] == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"moduli": 21}, "number of moduli is 21, allowed are 2 to 20"),
        ({"moduli": 2**32 + 15}, "number of moduli is 4294967311"),
        ({"fewer_moduli": 16}, "fewer_moduli is 16 of 15"),
        ({"fewer_moduli": 1}, "number of moduli is 1,"),
        ({"wide_moduli": 0}, "number of moduli is 0,"),
        ({"fewer_moduli": 2, "k": 2**40}, "too long for 2 moduli"),
        ({"count": (2,)}, r"count has shape \(2\), expected \(1\)"),
        ({"wide_count": ()}, r"expected \(1\)"),
        ({"wide_scale_a": (1, 5)}, r"wide_scale_a has shape \(1, 5\), expected \(1, 4\)"),
        ({"wide_scale_b": (4, 1)}, r"wide_scale_b has shape \(4, 1\), expected \(1, 9\)"),
    ],
    ids=str,
)
def test_certify_checks_what_it_counts_moduli_for(wrong, words):  # case 25
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*certify.*{words}"):
        certify(**wrong)


def test_arrays_on_a_chosen_device():  # case 22
    x = jax.device_put(np.random.default_rng(1).standard_normal((4, 4)), jax.devices("cpu")[-1])
    c = jo.dot(x, x)
    assert c.devices() == x.devices()
    assert_same_bits(c, ladder_oracle.default_product(x, x))
