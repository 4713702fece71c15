"""Exact integers as a few int64 limbs, which the shards of a contraction add up.

X = sum_i limb_i 2^(width i), every limb but the last in [0, 2^width). The width leaves room for the sum of all
summands; the last limb is what is left of X, with its sign, and sums of it may wrap: they are right modulo 2^64.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import jax.numpy as jnp
from jax import Array

from ._moduli import Crt

_WORD_BITS = 32
"""Bits of a word of the reference's integers."""


def width(summands: int) -> int:
    """Bits of a limb: 57 for up to 64 summands."""
    return 63 - (summands - 1).bit_length()


def count(crt: Crt, summands: int) -> int:
    """The limbs that hold every X with 2 abs(X) < P, and sums of them with that property."""
    return 1 + max(0, -(-(crt.product.bit_length() - 64) // width(summands)))


def split(words: list[Array], crt: Crt, summands: int) -> list[Array]:
    """The limbs of X from its words of two's complement, lowest first."""
    bits, last = width(summands), count(crt, summands) - 1
    # The sign goes on above the highest word.
    digits = [word.astype(jnp.int64) for word in words]
    digits[-1] = (digits[-1] ^ (1 << _WORD_BITS - 1)) - (1 << _WORD_BITS - 1)
    limbs = [_gather(digits, _WORD_BITS, bits * i) for i in range(last + 1)]
    return [*(limb & ((1 << bits) - 1) for limb in limbs[:last]), limbs[last]]


def join(limbs: list[Array], crt: Crt, summands: int) -> tuple[Array, list[Array]]:
    """(X < 0, the words of abs(X)) from sums of limbs."""
    bits = width(summands)
    negative = _carried(limbs, bits)[-1] < 0
    magnitude = _carried([_signed(negative, limb) for limb in limbs], bits)
    words = [_gather(magnitude, bits, _WORD_BITS * i) & ((1 << _WORD_BITS) - 1) for i in range(crt.limbs)]
    return negative, [word.astype(jnp.uint64) for word in words]


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
    """64 bits, from bit ``start``, of the number with these int64 digits of ``bits`` bits, the highest with a sign."""
    shifts = [bits * i - start for i in range(len(digits))]
    parts = [x << s if s >= 0 else x >> -s for x, s in zip(digits, shifts, strict=True) if -64 < s < 64]
    return reduce(or_, parts, jnp.zeros_like(digits[0]))
