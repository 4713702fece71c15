"""Programs that outlive their process: exported ones, and jax's persistent cache."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((5, 7)), RNG.standard_normal((7, 3))


def round_trip(program, *args, **options):
    exported = jax.export.export(program, disabled_checks=jo.export_checks(), **options)(*args)
    return jax.export.deserialize(exported.serialize(vjp_order=1))


PROGRAMS = {
    "jo.dot": lambda a, b: jo.dot(a, b),
    "emulate": jo.emulate(lambda a, b: jax.lax.fori_loop(0, 2, lambda i, c: a @ a.T @ c, a @ b), min_size=0),
    "report": lambda a, b: jo.dot(a, b, contract=jo.Contract.normwise(2), return_report=True)[1].achieved,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_exported_programs(name):
    pytest.importorskip("flatbuffers")
    program = PROGRAMS[name]
    found = round_trip(jax.jit(program), A, B).call(A, B)
    np.testing.assert_array_equal(found, program(jnp.asarray(A), jnp.asarray(B)))


def test_exported_derivatives():
    pytest.importorskip("flatbuffers")
    loaded = round_trip(jax.jit(PROGRAMS["jo.dot"]), A, B)
    found = jax.grad(lambda a, b: loaded.call(a, b).sum(), (0, 1))(A, B)
    expected = jax.grad(lambda a, b: jo.dot(a, b).sum(), (0, 1))(A, B)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_programs_exported_under_enable_and_for_several_platforms():
    pytest.importorskip("flatbuffers")
    with jo.enable(min_size=0):
        loaded = round_trip(jax.jit(jnp.dot), A, B, platforms=("cpu", "cuda"))
    assert "stablehlo.dot_general" not in loaded.mlir_module()
    np.testing.assert_array_equal(loaded.call(A, B), jo.dot(A, B))


def test_without_the_checks_jax_refuses():
    with pytest.raises(ValueError, match=r"jax_ozaki\.ladder_quantize\.v1"):
        jax.export.export(jax.jit(jo.dot))(A, B)


CACHED = """
import sys, jax, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import jax_ozaki as jo
if sys.argv[2:]:
    info = jo._ffi.build_info() | {"ffi_hash": sys.argv[2]}
    jo._ffi.build_info = lambda: info
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rsplit("/", 1)[-1]))
a = np.arange(15.0).reshape(3, 5)
result = jax.jit(jo.dot)(a, a.T)
print(events.count("cache_hits"), events.count("cache_misses"), np.array_equal(result, a @ a.T))
"""


def test_the_persistent_cache_knows_the_kernels(tmp_path):
    def run(*build):
        done = subprocess.run(
            [sys.executable, "-P", "-c", CACHED, str(tmp_path), *build],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | {"XLA_FLAGS": ""},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert run() == ["0", "1", "True"]
    assert run() == ["1", "0", "True"]  # valid in the next run
    assert run("other kernels") == ["0", "1", "True"]
    assert run() == ["1", "0", "True"]
