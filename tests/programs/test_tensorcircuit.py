import jax
import jax.numpy as jnp
import numpy as np
import pytest

from closed_forms import U

tc = pytest.importorskip("tensorcircuit")

tc.set_backend("jax")
tc.set_dtype("complex128")  # its default is complex64, which turns jax_enable_x64 off

QUBITS = 8


def test_fourier_transform(check):
    """The quantum Fourier transform of a basis state is a plane wave."""
    index = 0b10110101

    def program(angle):
        circuit = tc.Circuit(QUBITS)
        for i in range(QUBITS):
            if index >> (QUBITS - 1 - i) & 1:
                circuit.x(i)
        for i in range(QUBITS):
            circuit.h(i)
            for j in range(i + 1, QUBITS):
                circuit.cphase(j, i, theta=angle / 2 ** (j - i))
        for i in range(QUBITS // 2):
            circuit.swap(i, QUBITS - 1 - i)
        return circuit.state()

    wave = np.exp(2j * np.pi * index * np.arange(2**QUBITS) / 2**QUBITS) / 2 ** (QUBITS / 2)
    check(program, np.pi, known=wave, tolerance=100 * QUBITS * U)


def test_energy_and_its_gradient(check):
    """All qubits turned by theta about y: any Z Z has the mean cos^2 theta, any X has sin theta."""
    bonds, sites = (0, 3, 6), (0, 4)  # each term is a network of its own to compile

    def energy(theta):
        circuit = tc.Circuit(QUBITS)
        for i in range(QUBITS):
            circuit.ry(i, theta=theta)
        zz = [circuit.expectation_ps(z=[i, i + 1]) for i in bonds]
        x = [circuit.expectation_ps(x=[i]) for i in sites]
        return jnp.real(sum(zz) + sum(x))

    theta = 0.7
    cos, sin = np.cos(theta), np.sin(theta)
    known = len(bonds) * cos**2 + len(sites) * sin, -2 * len(bonds) * sin * cos + len(sites) * cos
    check(jax.value_and_grad(energy), theta, known=known, tolerance=100 * QUBITS * U)
