import jax
import jax.numpy as jnp
import numpy as np
import pytest

from closed_forms import U

tinygp = pytest.importorskip("tinygp")

N = 40


def likelihood(theta, t, y):
    gp = tinygp.GaussianProcess(jnp.exp(2 * theta[0]) * tinygp.kernels.Exp(jnp.exp(theta[1])), t, diag=0.0)
    return gp.log_probability(y)


def markov(theta, t, y):
    """The same by the chain rule of probability: given y_i, the next value is normal around phi y_i."""
    phi = jnp.exp(-jnp.diff(t) * jnp.exp(-theta[1]))
    mean = jnp.concatenate([jnp.zeros(1), phi * y[:-1]])
    variance = jnp.exp(2 * theta[0]) * jnp.concatenate([jnp.ones(1), 1 - phi**2])
    return -0.5 * jnp.sum((y - mean) ** 2 / variance + jnp.log(2 * jnp.pi * variance))


def test_likelihood_and_its_gradient(check):
    """An Ornstein-Uhlenbeck process, seen irregularly; it is Markov."""
    t = np.cumsum(1 + np.arange(N) * 0.618 % 1)
    y = np.sin(t)
    theta = np.array([0.3, 0.7])
    known = jax.value_and_grad(markov)(theta, t, y)
    check(jax.value_and_grad(likelihood), theta, t, y, known=known, tolerance=100 * N * U)
