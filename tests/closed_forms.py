"""Matrices whose inverse, exponential and eigenvalues are known in closed form."""

import numpy as np

U = 2.0**-53


def reflector(n):
    """A symmetric orthogonal matrix without zeros: the Householder reflector of (1, 2, ..., n)."""
    v = np.arange(1.0, n + 1)
    return np.eye(n) - 2 * np.outer(v, v) / (v @ v)


def rotations(n):
    """A skew-symmetric matrix and its exponential: in a basis of reflected axes, plane rotations by 1, 1/2, 1/3, ..."""
    q, generator, rotation = reflector(n), np.zeros((n, n)), np.zeros((n, n))
    for i in range(n // 2):
        angle, block = 1 / (i + 1), np.s_[2 * i : 2 * i + 2, 2 * i : 2 * i + 2]
        cos, sin = np.cos(angle), np.sin(angle)
        generator[block], rotation[block] = [[0, -angle], [angle, 0]], [[cos, -sin], [sin, cos]]
    return q @ generator @ q, q @ rotation @ q


def random_walk(n):
    """The covariance of a random walk at n irregular times, min(t_i, t_j), its tridiagonal inverse and a bound on its
    condition number: the steps are between 1 and 2, so the norms are at most n (n + 1) (the trace) and 4 (Gershgorin).
    """
    steps = 1 + np.arange(1, n + 1) * (5**0.5 - 1) / 2 % 1
    times, weights = np.cumsum(steps), 1 / steps
    inverse = np.diag(weights + np.append(weights[1:], 0)) - np.diag(weights[1:], 1) - np.diag(weights[1:], -1)
    return np.minimum.outer(times, times), inverse, 4 * n * (n + 1)
