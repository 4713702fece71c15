"""Runs of the command line, and the matrices a.npy and b.npy that they multiply."""

import subprocess
import sys

import numpy as np

from jax_ozaki.__main__ import main

RNG = np.random.default_rng(7)
A = RNG.standard_normal((6, 5))
B = RNG.standard_normal((5, 4))


def save_operands():
    np.save("a.npy", A)
    np.save("b.npy", B)


def multiply(a="a.npy", b="b.npy", output="c.npy", *options):
    return main(["multiply", str(a), str(b), "-o", str(output), *options])


def assert_refused(capsys, status, code, *words):
    """One line on stderr that holds every word, and the exit status."""
    error = capsys.readouterr().err
    assert status == code
    assert error.startswith("python -m jax_ozaki ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def run(*args, **options):
    """A process of its own."""
    command = [sys.executable, "-P", "-m", "jax_ozaki", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
