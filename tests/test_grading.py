"""The grading tests for matrix products of Demmel et al.: which accuracy a product has that calls itself DGEMM.

J. Demmel, X. Li, J. Riedy, G. Henry, W. Kahan, "How to grade the accuracy of an implementation of the BLAS": an
error that grows at most linearly, componentwise (no Strassen), and no fixed point. By the default contract.
"""

import jax
import numpy as np
import pytest

import jax_ozaki as jo
import oracle

U = 2.0**-53


def matmul(a, b):
    return jax.jit(lambda a, b: jo.matmul(a, b, return_report=True))(a, b)


@pytest.mark.parametrize("n", [16, 64, 256, 1024])
def test_componentwise_error_grows_at_most_linearly(n):
    """U(0, 1): |C - AB| <= n u |A||B|; measured on some rows and columns."""
    rng = np.random.default_rng(n)
    a, b = rng.random((n, n)) * rng.uniform(1, 2, (n, 1)), rng.random((n, n)) * rng.uniform(1, 2, (1, n))
    c, report = matmul(a, b)
    rows, columns = a[:8], b[:, :8]
    error = oracle.errors(np.asarray(c)[:8, :8], rows, columns)
    magnitude = oracle.integers(abs(rows)) @ oracle.integers(abs(columns))
    worst = max(float(e * 2**53 / s) for e, s in zip(error.flat, magnitude.flat, strict=True))
    assert worst <= report.achieved <= 1 + n**0.5 < n
    assert report.rungs.tolist() == [n * n, 0, 0, 0]


@pytest.mark.parametrize("scale", [1.0, 2.0**400])
def test_planted_zeros_stay_zero(scale):
    """Outputs that only zeros meet, beside large ones: a fast algorithm leaves rounding errors there."""
    rng = np.random.default_rng(1)
    n = 96
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    left = np.arange(n) < n // 2
    a[np.ix_(left, left)] = 0
    b[np.ix_(~left, left)] = 0
    a[np.ix_(~left, left)] *= scale
    c, report = matmul(a, b)
    zero = left[:, None] & left
    assert (np.asarray(c)[zero] == 0).all()
    assert (np.asarray(c)[~zero] != 0).all()
    assert 0.9 * zero.sum() < report.rungs[1] <= zero.sum()  # the masks say so; a few rows and columns are exact


@pytest.mark.parametrize("n", [16, 64, 256])
def test_no_fixed_point(n):
    """Rows x D against columns D^-1 x, D powers of two over +-(512 - log2 n - 2): the diagonal is x.x to 10 n u."""
    rng = np.random.default_rng(n)
    extent = 512 - int(np.log2(n)) - 2
    x = rng.uniform(1, 2, n)
    d = np.rint(np.linspace(-extent, extent, n)).astype(int)
    a = np.stack([np.ldexp(x, np.roll(d, i)) for i in range(n)])
    b = np.stack([np.ldexp(x, -np.roll(d, i)) for i in range(n)], axis=1)
    c, report = matmul(a, b)
    square = oracle.integers(x[None]) @ oracle.integers(x[:, None])
    error = abs((oracle.integers(np.diag(c)) << oracle.UNIT) - square[0, 0])
    assert (error * 2**53 <= 10 * n * square[0, 0]).all()
    # Integer sums, but where the largest elements of a row and of a column meet.
    assert 0.9 * n * n < report.rungs[3] <= n * n - n
    plain = np.asarray(jo.matmul(a, b, contract=jo.Contract.mantissa(53)))
    assert (abs(np.diag(plain) / float(x @ x) - 1) > 10 * n * U).all()  # what plain emulation makes of it
