import jax
import numpy as np
import pytest

from closed_forms import U, random_walk, reflector

lx = pytest.importorskip("lineax")

N = 24


def solver(method, *tags):
    """The solution of A x = b and the cotangents of A and b."""

    def solve(a, b):
        return lx.linear_solve(lx.MatrixLinearOperator(a, tags), b, method).value

    def program(a, b, g):
        value, pullback = jax.vjp(solve, a, b)
        return value, *pullback(g)

    return program


def problem():
    a, inverse, condition = random_walk(N)
    x, g = reflector(N)[:2]
    return (a, a @ x, g), (x, -np.outer(inverse @ g, x), inverse @ g), condition


def test_cg(check):
    arguments, known, condition = problem()
    rtol = 1e-13
    program = solver(lx.CG(rtol=rtol, atol=rtol), lx.positive_semidefinite_tag)
    check(program, *arguments, known=known, tolerance=condition * rtol)


def test_lu(check):
    arguments, known, condition = problem()
    check(solver(lx.LU()), *arguments, known=known, tolerance=condition * N * U)
