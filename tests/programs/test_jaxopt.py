from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from closed_forms import random_walk, reflector

jaxopt = pytest.importorskip("jaxopt")

N = 16
TOLERANCE = 1e-13

solve_cg = partial(jaxopt.linear_solve.solve_cg, tol=TOLERANCE)


def operator(x, theta, k, b):
    """M x, M = I + B^T (theta K)^-1 B, with a linear solve of its own."""
    return x + b.T @ jnp.linalg.solve(theta * k, b @ x)


def optimality(x, theta, k, b, c):
    return operator(x, theta, k, b) - c


@jaxopt.implicit_diff.custom_root(optimality, solve=solve_cg)
def root(start, theta, k, b, c):
    return solve_cg(lambda x: operator(x, theta, k, b), c, init=start)


def test_nested_linear_solves(check):
    """A solve within each step of another, forwards and in the implicit derivative.

    At theta = 1, M dx/dtheta = B^T K^-1 B x, so that <M y, x> has the derivative <y, B^T K^-1 B x>.
    """
    k, inverse, _ = random_walk(N)
    b = reflector(N)
    x, y = np.linspace(-1, 1, N), np.linspace(1, 2, N)
    schur = b.T @ inverse @ b

    def program(theta, k, b, c, g):
        return jax.value_and_grad(lambda theta: g @ root(jnp.zeros(N), theta, k, b, c))(theta)

    arguments = (1.0, k, b, x + schur @ x, y + schur @ y)
    known = ((y + schur @ y) @ x, y @ schur @ x)
    check(program, *arguments, known=known, tolerance=100 * TOLERANCE)
