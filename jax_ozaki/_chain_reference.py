"""The sums of ``_chains`` in pure JAX. XLA may contract operations and flush subnormals: all is in integers."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from . import _chains, _reference, _wide
from ._operand import Operand

_SMALLEST = (1023 - 960) << 52
"""The bits of 2^-960."""
_INFINITY = 0x7FF << 52


def chain_sum(lhs: Operand, rhs: Operand, group: int) -> tuple[Array, Array]:
    """AB in float64[batch, m, n], and where it is taken."""
    of_group = _chains.CHAIN * group
    groups = -(-lhs.k // of_group)
    tail = [(0, 0), (0, 0), (0, groups * of_group - lhs.k)]
    a, b = (jnp.pad(x.canonical(), tail) for x in (lhs, rhs))
    zero = jnp.zeros((lhs.batch, lhs.rows, rhs.rows))

    def of_chain(first: Array) -> Array:
        def add(h: Array, total: Array) -> Array:
            x, y = (lax.dynamic_index_in_dim(z, first + h, 2, keepdims=False) for z in (a, b))
            return fma(x[:, :, None], y[:, None, :], total)

        return lax.fori_loop(0, _chains.CHAIN, add, zero)

    def sum_of_group(first: Array) -> Array:
        return lax.fori_loop(0, group, lambda q, total: _add(total, of_chain(first + _chains.CHAIN * q)), zero)

    total = lax.fori_loop(0, groups, lambda g, total: _add(total, sum_of_group(of_group * g)), zero)
    magnitude = lax.bitcast_convert_type(total, jnp.uint64) & ~jnp.uint64(1 << 63)
    return total, (magnitude >= jnp.uint64(_SMALLEST)) & (magnitude < jnp.uint64(_INFINITY))


def _add(x: Array, y: Array) -> Array:
    return fma(x, jnp.ones_like(x), y)


def fma(x: Array, y: Array, z: Array) -> Array:
    """x y + z with one rounding, by integers; NaN for operands that are not finite. The sign of a zero may differ."""
    (s, a, e), (t, b, f), (u, c, g) = map(_wide.normalise, (x, y, z))
    product, addend = _wide.multiply(a, b), (c >> 11, c << 53)  # of 106 bits: below 2^(e + f), below 2^g
    top = jnp.maximum(e + f, g)
    # 124 bits for the larger one. What the smaller one loses below them can only decide a tie: 1 stands for it.
    total = _wide.add(
        _wide.negate_where(s != t, _cut(product, top - e - f)),
        _wide.negate_where(u, _cut(addend, top - g)),
    )
    negative = total[0] >> 63 == 1
    high, low = _wide.negate_where(negative, total)
    limbs = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    result = _reference.round_to_float64(negative, limbs, top - 124)
    finite = jnp.isfinite(x) & jnp.isfinite(y) & jnp.isfinite(z)
    return jnp.where(finite, result, jnp.nan)


def _cut(x: _wide.Wide, distance: Array) -> _wide.Wide:
    """x 2^(18 - distance), the lowest bit set if anything is lost, for x below 2^106."""
    (high, low), lost = _wide.shift_right((x[0] << 18 | x[1] >> 46, x[1] << 18), jnp.clip(distance, 0, 127))
    return high, low | lost
