"""A Gaussian process for the CO2 of Mauna Loa: marginal likelihood, grad under jit, vmap.

The kernel is that of Rasmussen & Williams, Gaussian Processes for Machine Learning, section 5.4.3:
a smooth trend, a season that slowly changes its shape, medium-term irregularities, noise. The
products in the squared distances, the blocked Cholesky factorisation, the prediction and their
derivatives run through jax_ozaki; the likelihood and its gradient once more through jnp.

Contract: normwise(2). Gaussian kernels decay and a Cholesky factorisation is stable in norm, so a
promise element by element would cost more and buy nothing.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.scipy.linalg import solve_triangular

import jax_ozaki as jo

jax.config.update("jax_enable_x64", True)

DATA = Path(__file__).parent / "data" / "mauna_loa_co2.csv"
FORECAST_FROM = 2000.0  # trained on the years before
MEDIUM_SHAPE = 0.78  # alpha of the rational quadratic, as in the book

START = {  # amplitudes and noise in ppmv, lengths in years, smoothness dimensionless
    "trend_amplitude": 50.0,
    "trend_length": 50.0,
    "season_amplitude": 2.5,
    "season_length": 90.0,
    "season_smoothness": 1.3,
    "medium_amplitude": 0.7,
    "medium_length": 1.2,
    "noise": 0.2,
}


def squared_distances(x, y, dot):
    """|x_i - y_j|^2 for points in rows, from one product."""
    return jnp.maximum((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * dot(x, y.T), 0.0)


def geometry(t, s, dot):
    """Squared distances of two series of times (years): in time, and on the circle of the year."""

    def circle(t):
        return jnp.stack([jnp.cos(2 * jnp.pi * t), jnp.sin(2 * jnp.pi * t)], axis=1)

    t, s = t - 1980.0, s - 1980.0
    return squared_distances(t[:, None], s[:, None], dot), squared_distances(circle(t), circle(s), dot)


def kernel(theta, time2, phase2):
    """Covariance in ppmv^2, without the noise."""
    q = {name: jnp.exp(value) for name, value in theta.items()}
    trend = q["trend_amplitude"] ** 2 * jnp.exp(-0.5 * time2 / q["trend_length"] ** 2)
    season = q["season_amplitude"] ** 2 * jnp.exp(
        -0.5 * (time2 / q["season_length"] ** 2 + phase2 / q["season_smoothness"] ** 2)
    )
    ratio = time2 / (2 * MEDIUM_SHAPE * q["medium_length"] ** 2)
    return trend + season + q["medium_amplitude"] ** 2 * (1 + ratio) ** -MEDIUM_SHAPE


def cholesky(a, dot, block=256):
    """Left-looking blocked Cholesky factorisation: its work is products."""
    n = len(a)
    factor = jnp.zeros_like(a)
    for start in range(0, n, block):
        stop = min(start + block, n)
        done = factor[start:, :start]
        panel = a[start:, start:stop] - dot(done, done[: stop - start].T)
        corner = jnp.linalg.cholesky(panel[: stop - start])
        below = solve_triangular(corner, panel[stop - start :].T, lower=True).T
        factor = factor.at[start:, start:stop].set(jnp.concatenate([corner, below]))
    return factor


def factorise(theta, distances, dot):
    noisy = kernel(theta, *distances) + jnp.exp(2 * theta["noise"]) * jnp.eye(len(distances[0]))
    return cholesky(noisy, dot)


def log_likelihood(theta, distances, y, dot):
    """log p(y | t, theta): R&W eq. 2.30."""
    factor = factorise(theta, distances, dot)
    white = solve_triangular(factor, y, lower=True)
    return -0.5 * dot(white, white) - jnp.log(jnp.diag(factor)).sum() - 0.5 * len(y) * jnp.log(2 * jnp.pi)


def predict(theta, t, y, s, dot):
    """Mean and standard deviation at the times ``s``: R&W eq. 2.25 and 2.26."""
    factor = factorise(theta, geometry(t, t, dot), dot)
    white = solve_triangular(factor, y, lower=True)
    cross = solve_triangular(factor, kernel(theta, *geometry(t, s, dot)), lower=True)
    variance = kernel(theta, jnp.zeros(()), jnp.zeros(())) - (cross**2).sum(0)
    return dot(cross.T, white), jnp.sqrt(variance + jnp.exp(2 * theta["noise"]))


def unpack(x):
    """A vector of logarithms as hyperparameters by name."""
    return dict(zip(START, jnp.asarray(x), strict=True))


def main():
    year, month, co2 = np.loadtxt(DATA, delimiter=",", skiprows=5, unpack=True)
    t = year + (month - 0.5) / 12
    known = t < FORECAST_FROM
    mean = co2[known].mean()
    train, test = jnp.asarray(t[known]), jnp.asarray(t[~known])
    y = jnp.asarray(co2[known] - mean)
    theta = unpack(np.log(list(START.values())))
    print(f"Mauna Loa CO2: {len(y)} monthly means to fit, {len(test)} to forecast")

    jo_dot = partial(jo.dot, contract=jo.Contract.normwise(2))
    distances = geometry(train, train, jo_dot)
    objective = {
        name: jax.jit(jax.value_and_grad(partial(log_likelihood, distances=distances, y=y, dot=dot)))
        for name, dot in (("jnp.dot", jnp.dot), ("jo.dot", jo_dot))
    }

    value, gradient = objective["jo.dot"](theta)
    native_value, native_gradient = objective["jnp.dot"](theta)
    value_gap = abs(value / native_value - 1)
    gradient_gap = max(abs(gradient[name] - native_gradient[name]) for name in theta)
    print(f"log likelihood {value:.9f}; against jnp.dot: value {value_gap:.1e} (relative), "
          f"gradient {gradient_gap:.1e} (absolute)")  # fmt: skip
    assert value_gap < 1e-9
    assert gradient_gap < 1e-5
    h = 1e-4
    ends = [objective["jo.dot"](theta | {"noise": theta["noise"] + d})[0] for d in (h, -h)]
    assert abs((ends[0] - ends[1]) / (2 * h) - gradient["noise"]) < 1e-4 * abs(gradient["noise"])

    # vmap over a grid of one hyperparameter: one batched program.
    @jax.jit
    @jax.vmap
    def with_noise(log_noise):
        return log_likelihood(theta | {"noise": log_noise}, distances, y, jo_dot)

    noises = (0.1, 0.2, 0.4)
    grid = with_noise(jnp.log(jnp.array(noises)))
    print("at noise", ", ".join(f"{n} ppmv: {v:.2f}" for n, v in zip(noises, grid, strict=True)))
    assert abs(grid[1] - value) < 1e-9 * abs(value)

    def descend(x):
        value, gradient = objective["jo.dot"](unpack(x))
        return -float(value), -np.array([gradient[name] for name in START])

    x0 = np.array([theta[name] for name in START])
    best = scipy.optimize.minimize(descend, x0, jac=True, method="L-BFGS-B", options={"maxiter": 10})
    theta = unpack(best.x)
    print(f"after {best.nit} L-BFGS steps ({best.nfev} gradients): log likelihood {-best.fun:.2f}")
    print("  " + ", ".join(f"{name} {float(jnp.exp(theta[name])):.3g}" for name in START))
    assert -best.fun > value

    forecast, deviation = jax.jit(partial(predict, dot=jo_dot))(theta, train, y, test)
    error = np.asarray(forecast) + mean - co2[~known]
    rms = float(np.sqrt(np.mean(error**2)))
    inside = float(np.mean(abs(error) < 2 * np.asarray(deviation)))
    print(f"forecast {FORECAST_FROM:.0f}-2001: rms error {rms:.2f} ppmv, {inside:.0%} within two standard deviations")  # fmt: skip
    assert rms < 1.5
    assert inside > 0.8


if __name__ == "__main__":
    main()
