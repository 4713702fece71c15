"""The density matrix of C60 by SP2 purification: jax_ozaki.dot inside jit and lax.while_loop.

The library call behind `python -m jax_ozaki demo`, with a derivative taken through it.
Hueckel model: H_ij = beta = -1 between bonded carbon atoms, one pi electron an atom; energies in
|beta|. Method: A. M. N. Niklasson, Phys. Rev. B 66, 155115 (2002).

Contract: normwise(2). A density matrix decays away from its diagonal and its error is judged by
its norm, so a promise element by element would cost more and buy nothing.
"""

from functools import partial
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np

import jax_ozaki as jo

jax.config.update("jax_enable_x64", True)


def hamiltonian():
    """Adjacency of the C60 that the package ships: bonds are the pairs closer than 1.8 angstrom."""
    text = (resources.files("jax_ozaki") / "data" / "c60.xyz").read_text()
    x = np.loadtxt(text.splitlines(), skiprows=2, usecols=(1, 2, 3))
    distance = np.linalg.norm(x[:, None] - x, axis=-1)
    return jnp.asarray(np.where((distance > 0) & (distance < 1.8), -1.0, 0.0))


@partial(jax.jit, static_argnames=("occupied", "dot"))
def purify(h, occupied, dot):
    """The density matrix of ``h``, its idempotency error |P^2 - P|_F and the iterations taken."""
    radius = jnp.abs(h).sum(axis=1).max()  # Gershgorin; the diagonal of h is zero
    p = 0.5 * (jnp.eye(len(h)) - h / radius)  # maps [-radius, radius] to [1, 0]

    def step(state):
        p, p2, error, left, i = state
        squared, reflected = jnp.trace(p2), 2 * jnp.trace(p) - jnp.trace(p2)
        p = jnp.where(abs(squared - occupied) < abs(reflected - occupied), p2, 2 * p - p2)
        p2 = dot(p, p)
        return p, p2, jnp.linalg.norm(p2 - p), jnp.where(error < 1e-4, left - 1, left), i + 1

    def unfinished(state):
        _, _, _, left, i = state
        return (left > 0) & (i < 100)

    p2 = dot(p, p)
    # Once the error is small every two steps square it: six more leave nothing but rounding.
    start = (p, p2, jnp.linalg.norm(p2 - p), 6, 0)
    p, _, error, _, iterations = jax.lax.while_loop(unfinished, step, start)
    return p, error, iterations


def main():
    h = hamiltonian()
    occupied = len(h) // 2
    exact = 2 * jnp.linalg.eigvalsh(h)[:occupied].sum()
    print(f"C60, {len(h)} pi electrons; diagonalisation: E = {exact:.10f} |beta|")

    dots = {"jnp.dot": jnp.dot, "jo.dot": partial(jo.dot, contract=jo.Contract.normwise(2))}
    for name, dot in dots.items():
        p, error, iterations = purify(h, occupied, dot)
        energy = 2 * jnp.sum(p * h)
        print(f"{name:8} E - exact = {energy - exact:8.1e}   |P^2 - P|_F = {error:.1e}   {iterations} iterations")
        assert abs(energy - exact) < 1e-10
        assert error < 1e-12

    # dE/dH = 2 P (Hellmann-Feynman): the same number through every product of the loop.
    dh = jnp.zeros_like(h).at[0, 0].set(1.0)
    _, derivative = jax.jvp(lambda h: 2 * jnp.sum(purify(h, occupied, dot)[0] * h), (h,), (dh,))
    print(f"jvp through the loop: dE/dalpha_1 = {derivative:.12f}, the charge of atom 1 (exactly 1)")
    assert abs(derivative - 2 * p[0, 0]) < 1e-10
    assert abs(derivative - 1) < 1e-10


if __name__ == "__main__":
    main()
