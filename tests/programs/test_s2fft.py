import numpy as np
import pytest

from closed_forms import U

s2fft = pytest.importorskip("s2fft")

L = 12


def test_round_trip(check):
    rng = np.random.default_rng(0)
    flm = s2fft.utils.signal_generator.generate_flm(rng, L)

    def program(flm):
        return s2fft.forward(s2fft.inverse(flm, L, method="jax"), L, method="jax")

    check(program, flm, known=flm, tolerance=100 * L * U)
