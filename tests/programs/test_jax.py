"""Programs of jax itself, which need nothing else installed."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import comb

from closed_forms import U, random_walk, reflector, rotations

N = 24


def test_expm(check):
    generator, rotation = rotations(N)
    check(jax.scipy.linalg.expm, generator, known=rotation, tolerance=10 * N * U)


def test_inv_and_its_cotangent(check):
    """The cotangent of A is -A^-T G A^-T."""
    a, inverse, condition = random_walk(N)
    g = reflector(N)

    def program(a, g):
        value, pullback = jax.vjp(jnp.linalg.inv, a)
        return value, *pullback(g)

    check(program, a, g, known=(inverse, -inverse @ g @ inverse), tolerance=condition * N * U)


def test_solve_and_its_cotangents(check):
    """The cotangents of A X = B are -A^-T G X^T and A^-T G."""
    a, inverse, condition = random_walk(N)
    x = reflector(N)[:, :3]
    g = reflector(N)[:, 3:6]

    def program(a, b, g):
        value, pullback = jax.vjp(jnp.linalg.solve, a, b)
        return value, *pullback(g)

    known = (x, -inverse @ g @ x.T, inverse @ g)
    check(program, a, a @ x, g, known=known, tolerance=condition * N * U)


def test_matrix_power(check):
    """The powers of I + (shift) hold binomial coefficients: every product is exact."""
    power = 43
    known = np.array([[comb(power, j - i, exact=True) if j >= i else 0 for j in range(N)] for i in range(N)], float)
    check(lambda a: jnp.linalg.matrix_power(a, power), np.eye(N) + np.eye(N, k=1), known=known, tolerance=0)


def test_pinv_and_its_derivative(check):
    """Along A itself the derivative of pinv is -pinv(A)."""
    rows, columns = 2 * N, N
    singular = np.linspace(1, 10, columns)
    left, right = reflector(rows)[:, :columns], reflector(columns)
    a, pinv = left * singular @ right, right / singular @ left.T
    check(lambda a: jax.jvp(jnp.linalg.pinv, (a,), (a,)), a, known=(pinv, -pinv), tolerance=10 * rows * U)


def test_gradient_of_cholesky(check):
    """The gradient of log det A = 2 sum log diag(L) is the inverse of A."""
    a, inverse, condition = random_walk(N)

    def log_det(a):
        return 2 * jnp.sum(jnp.log(jnp.diag(jnp.linalg.cholesky(a))))

    check(jax.grad(log_det), a, known=inverse, tolerance=condition * N * U)
