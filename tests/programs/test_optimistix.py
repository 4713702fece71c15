import jax
import jax.numpy as jnp
import numpy as np
import pytest

from closed_forms import reflector

optimistix = pytest.importorskip("optimistix")

ROWS, COLUMNS = 40, 12
TOLERANCE = 1e-12


def residual(x, args):
    """Zero at the known parameters only: A has orthonormal columns and x + x^3 is monotonic."""
    a, b = args
    return a @ (x + x**3) - b


def fit(a, b):
    solver = optimistix.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE)
    return optimistix.least_squares(residual, solver, jnp.zeros(COLUMNS), (a, b)).value


def test_least_squares_and_its_derivative(check):
    """Along b itself, (1 + 3 x^2) dx = x + x^3."""
    a = reflector(ROWS)[:, :COLUMNS]
    x = np.linspace(-1, 1, COLUMNS)
    y = x + x**3

    def program(a, b):
        return jax.jvp(lambda b: fit(a, b), (b,), (b,))

    check(program, a, a @ y, known=(x, y / (1 + 3 * x**2)), tolerance=100 * TOLERANCE)
