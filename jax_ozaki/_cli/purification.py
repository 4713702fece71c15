"""Density matrices by trace-correcting purification (SP2).

A. M. N. Niklasson, Phys. Rev. B 66, 155115 (2002).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

MAX_ITERATIONS = 100
CONVERGING = 1e-4
FINAL_STEPS = 6
"""Below ``CONVERGING`` every two steps square the idempotency error, so six leave nothing but rounding.
To count them, instead of watching the rounding itself, gives the same number on every device."""


class Purified(NamedTuple):
    """What ``purify`` returns; row i of a history belongs to the density after i iterations."""

    density: jax.Array
    iterations: jax.Array
    idempotency: jax.Array
    """History of |P^2 - P|_F, NaN beyond the last iteration."""
    energy: jax.Array
    """History of 2 tr(P H), likewise."""


State = tuple[Any, jax.Array, jax.Array, jax.Array, jax.Array]
"""Iteration, P, P^2 and the two histories."""


def purify(
    h: jax.Array,
    occupied: int,
    progress: Callable[[jax.Array, jax.Array], None] | None = None,
) -> Purified:
    """The projector on the ``occupied`` lowest eigenvectors of the symmetric ``h`` (shape (n, n)).

    P_0 maps the spectrum to [0, 1], lowest first; each step takes P^2 or 2P - P^2, whichever brings
    the trace closer to ``occupied``. It ends ``FINAL_STEPS`` after |P^2 - P| fell below ``CONVERGING``.
    ``progress(iteration, idempotency)`` is called back on the host.
    """
    radius = jnp.abs(h).sum(axis=1) - jnp.abs(jnp.diag(h))
    lower, upper = (jnp.diag(h) - radius).min(), (jnp.diag(h) + radius).max()  # Gershgorin
    p = (upper * jnp.eye(len(h)) - h) / (upper - lower)
    nothing = jnp.full(MAX_ITERATIONS + 1, jnp.nan)

    def record(i: Any, p: jax.Array, p2: jax.Array, errors: jax.Array, energies: jax.Array) -> State:
        error = jnp.linalg.norm(p2 - p)
        if progress is not None:
            jax.debug.callback(progress, i, error)
        return i, p, p2, errors.at[i].set(error), energies.at[i].set(2 * jnp.sum(p * h))

    def step(state: State) -> State:
        i, p, p2, errors, energies = state
        squared, reflected = jnp.trace(p2), 2 * jnp.trace(p) - jnp.trace(p2)
        p = jnp.where(abs(squared - occupied) < abs(reflected - occupied), p2, 2 * p - p2)
        return record(i + 1, p, p @ p, errors, energies)

    def improving(state: State) -> jax.Array:
        i, _, _, errors, _ = state
        finished = (i >= FINAL_STEPS) & (errors[i - FINAL_STEPS] < CONVERGING)
        return (i < MAX_ITERATIONS) & ~finished

    first = record(0, p, p @ p, nothing, nothing)
    i, p, _, errors, energies = jax.lax.while_loop(improving, step, first)
    return Purified(p, i, errors, energies)
