"""Programs of their own process: kernel paths, command buffers, and purification."""

import itertools
import re
import runpy
from functools import partial
from importlib import resources
from pathlib import Path

import jax
import numpy as np
import pytest

import jax_ozaki as jo
from jax_ozaki._cli.molecule import read_molecule
from jax_ozaki._cli.purification import purify

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_kernel_path_gives_the_same_bits(start, capsys):
    paths = [*itertools.product(("auto", "wgmma", "mma_sync"), ("residues", "partial_crt"), ("never",))]
    paths += [("wgmma", "residues", "always"), ("mma_sync", "residues", "always")]
    variables = ("JAX_OZAKI_CUDA_MMA", "JAX_OZAKI_CUDA_EPILOGUE", "JAX_OZAKI_CUDA_STRASSEN")
    everywhere = {"JAX_OZAKI_CUDA_SYMMETRY": "always"}
    started = {path: start("products.py", **everywhere, **dict(zip(variables, path, strict=True))) for path in paths}
    expected = start("products.py", JAX_PLATFORMS="cpu")()
    hashes = {path: finish() for path, finish in started.items()}
    whole = {path: found.pop("4096^3") for path, found in hashes.items()}
    for path, found in hashes.items():
        assert found == expected, path
    assert len(set(whole.values())) == 1, whole
    with capsys.disabled():
        print(f"\n4096^3, all bits, {len(whole)} kernel paths: {whole['wgmma', 'residues', 'never'][:16]}")


@pytest.mark.parametrize("variable", [f"JAX_OZAKI_CUDA_{x}" for x in ("MMA", "EPILOGUE", "STRASSEN", "SYMMETRY")])
def test_an_unknown_path_is_an_error(start, variable):
    """It also shows that the variable is read."""
    with pytest.raises(AssertionError, match=variable):
        start("scan.py", **{variable: "fastest"})()


def captured_calls(dump, function):
    """The custom calls inside command buffers, by the thunks that XLA dumped; None without any buffer."""
    for path in dump.glob(f"*jit_{function}*thunk_sequence*"):
        # Nested thunks are printed below their parent, further to the right.
        indents, count = [], 0
        for line in path.read_text().splitlines():
            if not (thunk := re.match(r"( *)(?:\d+: )?(k\w+)", line)):
                continue
            indent, kind = len(thunk[1]), thunk[2]
            while indents and indents[-1] >= indent:
                indents.pop()
            count += bool(indents) and "CustomCall" in kind
            if kind == "kCommandBuffer":
                indents.append(indent)
        if count:
            return count
    for path in dump.glob(f"*jit_{function}*thunk_metadata*"):
        # A flat list in which the thunks of a command buffer follow it.
        kinds = re.findall(r'thunk_kind: "(\w+)"', path.read_text())
        if "kCommandBuffer" in kinds:
            inside = kinds[kinds.index("kCommandBuffer") :]
            return sum("CustomCall" in kind for kind in inside)
    return None


def test_command_buffers_hold_the_calls_of_a_scan_and_of_a_product(start, tmp_path, capsys):
    settings = {"on": "", "off": " --xla_gpu_enable_command_buffer="}
    started = {
        name: start("scan.py", XLA_FLAGS=f"--xla_dump_to={tmp_path / name} --xla_dump_hlo_as_text{flags}")
        for name, flags in settings.items()
    }
    expected = start("scan.py", JAX_PLATFORMS="cpu", XLA_FLAGS="")()
    assert {name: finish() for name, finish in started.items()} == dict.fromkeys(settings, expected)
    for function in ("chain", "single"):
        captured = {name: captured_calls(tmp_path / name, function) for name in settings}
        with capsys.disabled():
            print(f"\n{function}: custom calls of a product in command buffers: {captured}")
        assert captured["off"] is None
        assert captured["on"] is not None and captured["on"] >= 4, sorted(p.name for p in (tmp_path / "on").iterdir())


def report_line(capsys, name, runs):
    """Energies and iterations on both platforms; equal counts, energies equal but for XLA's own sums."""
    (energy, count), (other, other_count) = runs
    with capsys.disabled():
        print(f"\n{name}: GPU {energy:.10f} in {count} iterations, CPU {other:.10f} in {other_count}")
    assert count == other_count
    assert abs(energy - other) <= 1e-13 * abs(other)


def test_purification_of_the_example(gpu, cpu, capsys):
    example = runpy.run_path(str(EXAMPLES / "purification.py"))
    h = np.asarray(example["hamiltonian"]())
    dot = partial(jo.dot, contract=jo.Contract.normwise(2))
    runs = []
    for device in (gpu, cpu):
        p, error, iterations = example["purify"](jax.device_put(h, device), len(h) // 2, dot)
        assert error < 1e-12
        runs.append((2 * float(np.sum(np.asarray(p) * h)), int(iterations)))
    report_line(capsys, "C60", runs)


def test_purification_of_the_demo(gpu, cpu, capsys):
    with resources.as_file(resources.files("jax_ozaki") / "data" / "c540.xyz") as path:
        molecule = read_molecule(path)
    h = np.asarray(molecule.hamiltonian, np.float64)
    run = jax.jit(lambda h: jo.emulate(purify, jo.Contract.normwise(2), min_size=0)(h, molecule.occupied))
    runs = []
    for device in (gpu, cpu):
        result = run(jax.device_put(h, device))
        runs.append((2 * float(np.sum(np.asarray(result.density) * h)), int(result.iterations)))
    report_line(capsys, "C540", runs)
