import jax
import jax.numpy as jnp
import numpy as np
import pytest

from closed_forms import reflector, rotations

diffrax = pytest.importorskip("diffrax")

N = 16
TOLERANCE = 1e-10


def flow(a):
    """Y(1) of Y' = A Y, Y(0) = I."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, a: a @ y),
        diffrax.Tsit5(),
        t0=0.0,
        t1=1.0,
        dt0=None,
        y0=jnp.eye(N),
        args=a,
        stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
    )
    return solution.ys[0]


def test_matrix_ode_and_its_gradient(check):
    """The flow is expm(A); <W, expm(A)> has the slope <W, A expm(A)> along A."""
    a, expm = rotations(N)

    def program(a, w):
        value, pullback = jax.vjp(flow, a)
        return value, jnp.sum(pullback(w)[0] * a)

    w = reflector(N)
    check(program, a, w, known=(expm, np.sum(w * (a @ expm))), tolerance=100 * TOLERANCE)
