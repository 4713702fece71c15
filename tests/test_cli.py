"""The command line as a program: processes, help and usage."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
from command_line import A, B, multiply, run, save_operands
from jax_ozaki.__main__ import main


@pytest.fixture(autouse=True)
def directory(directory):
    """The working directory with a.npy and b.npy in it."""
    save_operands()
    return directory


def test_process_multiplies_and_reports():
    done = run("multiply", "a.npy", "b.npy", "-o", "c.npy", "--contract", "normwise(2)")
    assert done.returncode == 0, done.stderr
    assert "normwise(2)" in done.stdout
    expected = jo.matmul(jnp.asarray(A), jnp.asarray(B), contract=jo.Contract.normwise(2))
    assert np.load("c.npy").tobytes() == np.asarray(expected).tobytes()


def test_process_refuses_without_a_traceback():
    done = run("multiply", "a.npy", "missing.npy", "-o", "c.npy")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "missing.npy: No such file" in done.stderr


def test_process_survives_a_closed_pipe():
    shell = f"'{sys.executable}' -P -m jax_ozaki info | head -c 1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["", "info", "multiply", "demo"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"] if command else ["--help"])
    assert stopped.value.code == 0
    assert "usage: python -m jax_ozaki" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["divide"], ["multiply", "a.npy"]])
def test_usage_errors(arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_x64_is_on_inside_the_program_only():
    with jax.enable_x64(False):
        assert multiply() == 0
        assert not jax.config.jax_enable_x64
    assert np.load("c.npy").dtype == np.float64
