import jax
import jax.numpy as jnp
import numpy as np
import pytest

from closed_forms import U, reflector

decomp = pytest.importorskip("matfree.decomp")

N = 16


def test_tridiagonalisation_and_its_gradient(check):
    """N steps of Lanczos give A = Q^T T Q; the trace of T has the gradient I."""
    eigenvalues = np.linspace(1, 2, N)
    a = reflector(N) * eigenvalues @ reflector(N)
    tridiagonalise = decomp.tridiag_sym(N, reortho="full")

    def program(a, start):
        def trace(a):
            q, t, _, _ = tridiagonalise(lambda v, a: a @ v, start, a)
            return jnp.trace(t), (q.T @ t @ q, jnp.linalg.eigvalsh(t))

        return jax.grad(trace, has_aux=True)(a)

    check(program, a, np.ones(N), known=(np.eye(N), (a, eigenvalues)), tolerance=100 * N * U)
