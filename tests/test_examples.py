"""The examples check themselves: each must end well and print its result."""

import os
import subprocess
import sys
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(directory, name, *arguments, devices=1):
    command = [sys.executable, "-P", str(EXAMPLES / name), *arguments]
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("purification.py", "jvp through the loop: dE/dalpha_1 = 1.0000"),
        ("gaussian_process.py", "within two standard deviations"),
        ("batched.py", "vmap = loop"),
    ],
)
def test_example(name, words, tmp_path):
    done = run(tmp_path, name)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert not list(tmp_path.iterdir())


def test_mesh_example_has_the_same_bits_on_any_mesh(tmp_path):
    bits = set()
    for devices in (1, 8):
        done = run(tmp_path, "mesh.py", devices=devices)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{devices} x ")
        bits |= {line for line in done.stdout.splitlines() if line.startswith("bits of")}
    assert len(bits) == 1


def test_every_example_is_tested():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"purification.py", "gaussian_process.py", "batched.py", "fullerenes.py", "mesh.py"}


def test_shipped_geometries_come_from_the_script(tmp_path):
    """Same comment and same atoms; the relaxed coordinates may differ in their last digits."""
    done = run(tmp_path, "fullerenes.py", "60", "540")
    assert done.returncode == 0, done.stderr
    for name in ("c60.xyz", "c540.xyz"):
        made = (tmp_path / name).read_text().splitlines()
        shipped = (resources.files("jax_ozaki") / "data" / name).read_text().splitlines()
        assert made[:2] == shipped[:2]
        assert Counter(line.split()[0] for line in made[2:]) == {"C": len(shipped) - 2}


def test_fullerenes_of_other_sizes_are_refused(tmp_path):
    done = run(tmp_path, "fullerenes.py", "100")
    assert done.returncode != 0
    assert "60, 180, 540" in done.stderr
