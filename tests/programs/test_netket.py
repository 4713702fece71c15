import os

import pytest

os.environ["NETKET_SHARDING"] = "0"  # otherwise its import sets a mesh for the whole process
nk = pytest.importorskip("netket")

SITES, STEPS = 8, 150


def test_heisenberg_chain(check):
    """Stochastic reconfiguration of a restricted Boltzmann machine, summed over all states, down to the ground state."""
    hilbert = nk.hilbert.Spin(0.5, SITES, total_sz=0)
    hamiltonian = nk.operator.Heisenberg(hilbert, nk.graph.Chain(SITES), sign_rule=True)

    def program():
        state = nk.vqs.FullSumState(hilbert, nk.models.RBM(alpha=2, param_dtype=float), seed=0)
        metric = nk.optimizer.SR(nk.optimizer.qgt.QGTJacobianDense, diag_shift=1e-3)
        driver = nk.driver.VMC(hamiltonian, nk.optimizer.Sgd(0.02), variational_state=state, preconditioner=metric)
        driver.run(STEPS, show_progress=False)
        return state.expect(hamiltonian).mean

    ground_state = nk.exact.lanczos_ed(hamiltonian)[0]
    check(program, known=ground_state, tolerance=1e-8, traceable=False)  # STEPS reach 4e-10
