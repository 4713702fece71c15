import numpy as np
import pytest

from closed_forms import random_walk, reflector

qpax = pytest.importorskip("qpax")

TOLERANCE = 1e-12
N, EQUALITIES, INEQUALITIES = 16, 4, 10


def test_optimum(check):
    """The problem is made from its optimum: half of the inequalities active, half with slack."""
    q_matrix, _, condition = random_walk(N)
    a, g = reflector(N)[:EQUALITIES], reflector(N)[EQUALITIES : EQUALITIES + INEQUALITIES]
    x, y = np.linspace(-1, 1, N), np.linspace(1, 2, EQUALITIES)
    slack = np.where(np.arange(INEQUALITIES) % 2, 1.0, 0.0)
    z = 1 - slack
    q = -(q_matrix @ x + a.T @ y + g.T @ z)

    def program(*problem):
        return qpax.solve_qp(*problem, solver_tol=TOLERANCE)[:4]

    check(program, q_matrix, q, a, a @ x, g, g @ x + slack, known=(x, slack, z, y), tolerance=condition * TOLERANCE)
