import numpy as np
import pytest

dq = pytest.importorskip("dynamiqs")
dq.set_precision("double")  # its default is single, which turns jax_enable_x64 off

LEVELS = 24
DETUNING, DAMPING, DRIVE = 1.0, 0.5, 0.4
TOLERANCE = 1e-10


def test_driven_damped_oscillator(check):
    """A coherent state, <a>' = -(i detuning + damping / 2) <a> - i drive, whose tail above LEVELS is below 1e-20."""
    times = np.linspace(0, 10, 11)

    def program(drive):
        a = dq.destroy(LEVELS)
        hamiltonian = DETUNING * a.dag() @ a + drive * (a + a.dag())
        method = dq.method.Tsit5(rtol=TOLERANCE, atol=TOLERANCE)
        start, jumps, observables = dq.fock(LEVELS, 0), [DAMPING**0.5 * a], [a, a.dag() @ a]
        return dq.mesolve(
            hamiltonian, jumps, start, times, exp_ops=observables, method=method, progress_meter=False
        ).expects

    rate = 1j * DETUNING + DAMPING / 2
    amplitude = -1j * DRIVE / rate * (1 - np.exp(-rate * times))
    check(program, DRIVE, known=np.stack([amplitude, abs(amplitude) ** 2 + 0j]), tolerance=100 * TOLERANCE)
