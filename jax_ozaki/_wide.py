"""Products of float64 values as integers of 128 bits, in pairs of uint64."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ._reference import bit_length, decompose, shift_left

Wide = tuple[Array, Array]
"""A 128-bit integer in two's complement: high and low words, uint64."""

NONE = -(1 << 20)
"""The exponent of a zero: far below all others."""


def normalise(x: Array) -> tuple[Array, Array, Array]:
    """(negative, fraction, exponent): |x| = fraction 2^(exponent - 53), 2^52 <= fraction < 2^53."""
    negative, significand, exponent, _ = decompose(x)
    length = bit_length(significand)
    fraction = jnp.where(significand > 0, significand << (53 - length).astype(jnp.uint64), 0)
    return negative, fraction, jnp.where(significand > 0, exponent + length, NONE)


def multiply(x: Array, y: Array) -> Wide:
    """The product of integers below 2^53."""
    x1, x0, y1, y0 = x >> 32, x & 0xFFFFFFFF, y >> 32, y & 0xFFFFFFFF
    middle = x1 * y0 + x0 * y1  # below 2^54
    low = x0 * y0
    total = low + (middle << 32)
    return x1 * y1 + (middle >> 32) + (total < low), total


def shift_right(x: Wide, shift: Array) -> tuple[Wide, Array]:
    """x 2^-shift rounded down, and whether that lost anything, for x >= 0 and shift >= 0."""
    high, low = x
    shifted = shift_left(high, -shift), shift_left(low, -shift) | shift_left(high, 64 - shift)
    back = shift_left(shifted[0], shift) | shift_left(shifted[1], shift - 64)
    return shifted, (back != high) | (shift_left(shifted[1], shift) != low)


def add(x: Wide, y: Wide) -> Wide:
    low = x[1] + y[1]
    return x[0] + y[0] + (low < y[1]), low


def negate_where(condition: Array, x: Wide) -> Wide:
    low = ~x[1] + 1
    high = ~x[0] + (low == 0)
    return jnp.where(condition, high, x[0]), jnp.where(condition, low, x[1])
