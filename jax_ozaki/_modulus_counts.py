"""How many moduli hold every X of a certified product: few-bit operands need few.

|X_ij| is at most the product of the norms of the row's and the column's integers. Their logarithms here are integers in
units of 1/256, rounded up and one more; but that of the norm that fewer moduli hold rounded down, that two of them need
no more moduli. A sum with another row's is an upper bound all the same.

``ffi/common/modulus_count.h`` has the same arithmetic.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from . import _moduli, _reference
from ._rungs import Certified

_UNITS = 256
_NOTHING = -(2**24)
_LOG_EXCESS = 23  # log2(1 + f) <= f + 0.0861 for 0 <= f <= 1


def modulus_counts(lhs: Certified, rhs: Certified, moduli: int, fewer: int, *, rounded: bool = True) -> Array:
    """The fewest of ``moduli`` moduli that hold every X of a batch element: int32[batch].

    ``fewer`` as in ``RungModuli``. Unless ``rounded``, those of rows and columns that are not rounded.
    """
    of_row, of_column = (_log_norms(rows, moduli, fewer, rounded).max(1) for rows in (lhs, rhs))
    log_product = of_row + of_column
    needed = jnp.full(log_product.shape, _moduli.MIN_MODULI, jnp.int32)
    for n in range(_moduli.MIN_MODULI, moduli):
        needed += log_product > _moduli.log_bound(n).product
    return needed


def scale(rows: Certified, moduli: int) -> Array:
    """The scales for another number of moduli."""
    return _reference.scales(rows.statistics, _moduli.bound(moduli))


def is_exact(rows: Certified) -> Array:
    """Whether the rows' integers are the elements themselves."""
    return (rows.scale >= -rows.statistics[..., 1]) | (rows.statistics[..., 3] == 0)


def _log_norms(rows: Certified, moduli: int, fewer: int, rounded: bool) -> Array:
    """A bound on log2 of the norm of every row's integers, and at most that of what their scale keeps:
    int32[batch, rows]."""
    limit: Array | int = _moduli.log_bound(moduli).norm
    if fewer < moduli:
        limit = jnp.where(rows.scale == scale(rows, fewer), _moduli.log_bound(fewer).norm - 2, limit)
    nothing = (rows.scale <= _reference.SCALE_INF) | (rows.statistics[..., 3] == 0)
    exact = jnp.minimum(_log_exact_norms(rows.statistics), limit)
    bound = jnp.where(is_exact(rows), exact, limit if rounded else _NOTHING)
    return jnp.where(nothing, _NOTHING, bound).astype(jnp.int32)


def _log_exact_norms(statistics: Array) -> Array:
    """A bound on log2 of the norm of every row in units of its last place, the scale of rows that are not rounded:
    int64[batch, rows]."""
    emax, lsb = statistics[..., 0], statistics[..., 1]
    sumsq = lax.bitcast_convert_type(statistics[..., 2], jnp.uint64)
    zeros = lax.clz(sumsq)
    leading = (((sumsq << zeros) - 1) >> 55).astype(jnp.int64)  # 256 (1 + f), rounded up, minus 1
    squared = _UNITS * (62 - zeros.astype(jnp.int64)) + leading + 1 + _LOG_EXCESS
    return ((squared + 1) >> 1) + 1 + _UNITS * (emax - 16 - lsb)
