"""Exact integers as a few int64 limbs, which the shards of a contraction add up.

X = sum_i limb_i 2^(width i), every limb of X's sign. The width leaves room for the sum of all summands; the last
limb is what is left of X, and sums of it may wrap: they are right modulo 2^64.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import jax.numpy as jnp
from jax import Array

from ._moduli import Crt

_WORD_BITS = 32
"""Bits of a limb of the reference's integers, here called a word."""


def width(summands: int) -> int:
    """Bits of a limb: 57 for up to 64 summands."""
    return 63 - (summands - 1).bit_length()


def count(crt: Crt, summands: int) -> int:
    """The limbs that hold every X with 2 abs(X) < P, and sums of them with that property."""
    return 1 + max(0, -(-(crt.product.bit_length() - 64) // width(summands)))


def split(negative: Array, words: list[Array], crt: Crt, summands: int) -> list[Array]:
    """The limbs of X from its sign and the words of its magnitude, lowest first."""
    bits, limbs = width(summands), []
    for i in range(last := count(crt, summands)):
        limb = _gather(words, _WORD_BITS, bits * i)
        limb = limb if i == last - 1 else limb & ((1 << bits) - 1)
        limbs.append(_signed(negative, limb.astype(jnp.int64)))
    return limbs


def join(limbs: list[Array], crt: Crt, summands: int) -> tuple[Array, list[Array]]:
    """(X < 0, the words of abs(X)) from sums of limbs."""
    bits = width(summands)
    negative = _carried(limbs, bits)[-1] < 0
    magnitude = _carried([_signed(negative, limb) for limb in limbs], bits)
    unsigned = [limb.astype(jnp.uint64) for limb in magnitude]
    return negative, [_gather(unsigned, bits, _WORD_BITS * i) & ((1 << _WORD_BITS) - 1) for i in range(crt.limbs)]


def _signed(negative: Array, x: Array) -> Array:
    return jnp.where(negative, -x, x)


def _carried(limbs: list[Array], bits: int) -> list[Array]:
    """The same X with every limb but the last in [0, 2^bits)."""
    carried, carry = [], jnp.zeros_like(limbs[0])
    for limb in limbs[:-1]:
        carried.append((limb + carry) & ((1 << bits) - 1))
        carry = (limb + carry) >> bits
    return [*carried, limbs[-1] + carry]


def _gather(digits: list[Array], bits: int, start: int) -> Array:
    """64 bits, from bit ``start``, of the number with these uint64 digits of ``bits`` bits."""
    shifts = [bits * i - start for i in range(len(digits))]
    parts = [x << s if s >= 0 else x >> -s for x, s in zip(digits, shifts, strict=True) if -64 < s < 64]
    return reduce(or_, parts, jnp.zeros_like(digits[0]))
