"""The last rung as a float64 sum in one fixed order, and how far it may be off.

Chains of ``CHAIN`` consecutive products, each added to the chain's sum from zero with one rounding (FMA); the sums of
``group`` consecutive chains added in order; the sums of the groups added in order. A product takes part in at most
``roundings`` roundings, so that |C - AB| <= ((1 + u)^roundings - 1) |A||B| without overflow and underflow.

There is no scaling. An overflow leaves an infinity or NaN to the end. An FMA that underflows is wrong by another
2^-1075 at most, all k of them by less than 2^-30 u |A||B| where |C| >= 2^-960, for |A||B| is then above 2^-961. So a
result is taken where it is finite and at least 2^-960; all others are summed as integers.
"""

from __future__ import annotations

CHAIN = 8


def group(k: int) -> int:
    """Chains of a group, for k >= 4: the largest power of two up to sqrt(k) / 2."""
    return 1 << (k.bit_length() - 3) // 2


def roundings(k: int) -> int:
    """That a product takes part in, at most."""
    groups = -(-k // (CHAIN * group(k)))
    return CHAIN + (group(k) - 1) + (groups - 1)


def error_factor(k: int) -> float:
    """A bound on |C - AB| in u |A||B| where the sum is taken; 2^-20 are above what the powers of 1 + u add."""
    return roundings(k) + 2.0**-20
