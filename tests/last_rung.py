"""The stage of the last rung alone, and operands that reach every part of it."""

from functools import partial

import jax
import numpy as np

from jax_ozaki import _ladder_reference, _rungs
from jax_ozaki._operand import Operand


@partial(jax.jit, static_argnums=(0, 1, 2), static_argnames="rungs")
def sums(stages, group, orders, a, b, rung, rungs=1 << _rungs.SUM):
    """The sums of every output with rung 4, and 7 elsewhere."""
    sides = [Operand(x, order) for x, order in zip((a, b), orders, strict=True)]
    tables = [stages.stats(x, 15)[1] for x in sides]
    m, n = (x.rows for x in sides)
    found = _ladder_reference.rung_map(rung)
    c = jax.numpy.full((rung.shape[0], m, n), 7.0)
    return stages.ladder_sum(*sides, *tables, found.rung, found.tiles, c, rungs=rungs, exact=False, group=group)


def adversarial(rng, m, k, n):
    """Rows a[m, k] and columns b[n, k]: D over +-512, rows that overflow, underflow and cancel, exactly or almost."""
    powers = rng.integers(-512, 513, k)
    a, b = np.ldexp(rng.standard_normal((m, k)), powers), np.ldexp(rng.standard_normal((n, k)), -powers)
    a[1] = np.ldexp(rng.standard_normal(k), rng.integers(480, 505, k))
    b[1] = np.ldexp(rng.standard_normal(k), rng.integers(480, 520, k))
    a[2] = np.ldexp(rng.standard_normal(k), rng.integers(-560, -460, k))
    b[2] = np.ldexp(rng.standard_normal(k), rng.integers(-520, -490, k))
    half = k // 2
    a[3, half : 2 * half], b[:, half : 2 * half] = -a[3, :half], b[:, :half]  # row 3: zero, but for an odd k
    a[4, half : 2 * half] = -a[4, :half] * (1 + 2.0**-52 * rng.integers(-1, 2, half))
    a[5] = np.where(rng.random(k) < 0.7, np.copysign(0, rng.standard_normal(k)), a[5])
    b[3] = np.ldexp(rng.integers(-(2**50), 2**50, k).astype(float), -1074)
    a[5, ::3] = np.ldexp(rng.standard_normal(a[5, ::3].shape), rng.integers(900, 1000, a[5, ::3].shape))
    return a, b
