import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
from closed_forms import U, reflector
from compiled import emulated

folx = pytest.importorskip("folx")

INPUTS, HIDDEN = 6, 16


def forward_laplacian(network):
    def program(w, v, x):
        result = folx.forward_laplacian(lambda x: network(w, v, x))(x)
        return result.x, result.jacobian.dense_array.reshape(-1), result.laplacian

    return program


def network(w, v, x):
    return v @ jnp.tanh(w @ x)


def problem():
    """With t = tanh(w x), the gradient is the sum of v_i (1 - t_i^2) w_i, the Laplacian that of -2 v_i t_i (1 - t_i^2) |w_i|^2."""
    w, v, x = 3 * reflector(HIDDEN)[:, :INPUTS], np.linspace(1, 2, HIDDEN), np.linspace(-1, 1, INPUTS)
    t = np.tanh(w @ x)
    slope = v * (1 - t**2)
    return (w, v, x), (v @ t, slope @ w, -2 * (slope * t) @ np.sum(w**2, axis=1))


def test_forward_laplacian(check):
    arguments, known = problem()
    check(forward_laplacian(network), *arguments, known=known, tolerance=100 * HIDDEN * U)


def test_forward_laplacian_of_emulated_network():
    """folx knows dot_general, but not what emulate makes of it: it has to differentiate that itself."""
    arguments, known = problem()
    program = jax.jit(forward_laplacian(jo.emulate(network, min_size=0)))
    assert emulated(program, *arguments)
    for result, of_known in zip(program(*arguments), known, strict=True):
        np.testing.assert_allclose(result, of_known, rtol=100 * HIDDEN * U)
