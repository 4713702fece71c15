"""The moduli of Ozaki scheme II and every integer constant derived from them.

This module is the single source of the arithmetic tables: the package reads it at run time and
``ffi/generate_tables.py`` writes the C++/CUDA header from it at build time. It uses nothing but
Python integers, so it runs before anything else is installed.

Source: K. Ozaki, Y. Uchino, T. Imamura, "Ozaki Scheme II: a GEMM-oriented emulation of
floating-point matrix multiplication using an integer modular technique" (2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

MODULI: tuple[int, ...] = (
    256, 253, 251, 249, 247, 241, 239, 235, 233, 229,
    227, 223, 217, 211, 199, 197, 193, 191, 181, 179,
)  # fmt: skip
"""Pairwise coprime moduli for real products; N moduli means the first N of them."""

COMPLEX_MODULI: tuple[int, ...] = (
    241, 233, 229, 221, 205, 197, 193, 181, 173, 157,
    149, 137, 113, 109, 101, 97, 89, 61, 73, 53,
)  # fmt: skip
"""Pairwise coprime moduli for complex products, every prime factor of them 1 mod 4: -1 has a square root.

61 before 73, which a group of the CRT can hold alone: 2^38 / 61 would exceed 32 bits.
"""

MIN_MODULI = 2
MAX_MODULI = len(MODULI)
MAX_COMPLEX_MODULI = len(COMPLEX_MODULI)

GROUP_SIZE = 3
"""Moduli per group of the partial CRT: y_g < 3 Q_g < 2^26 for groups of three."""

QUOTIENT_LIMIT = 256
"""S = sum_g y_g weights_g stays below this times P: 20 P for sums of residues, ten times that in a complex product by
Strassen-Winograd."""

CHUNK = 128
"""Consecutive k joined exactly in the row statistics; part of the definition of the scales."""

STATISTICS = 8
"""Fields of the statistics of a row."""

K_BLOCK = 1 << 16
"""Longest contraction whose unsigned products 255^2 k fit an unsigned 32-bit accumulator."""

assert 255 * 255 * K_BLOCK < 2**32
assert all(math.gcd(p, q) == 1 for s in (MODULI, COMPLEX_MODULI) for i, p in enumerate(s) for q in s[:i])


def imaginary_unit(p: int) -> int:
    """The smallest s with s^2 = -1 mod p, for a modulus of complex products."""
    return next(s for s in range(1, p) if (s * s + 1) % p == 0)


class Quotient(NamedTuple):
    """round(S / P) from the leading part of S < QUOTIENT_LIMIT P, an integer below 2^32.

    With S known to two units of 2^(32 limb): q = round(floor(S 2^-(32 limb + drop)) factor 2^-(32 + shift)). The
    weights' highest limb is ``top``, which is ``limb`` or the next.
    """

    top: int
    limb: int
    drop: int
    factor: int
    shift: int


@dataclass(frozen=True)
class Crt:
    """Constants of the Chinese remainder reconstruction for the first ``n`` moduli of a set.

    With v_i = X inv_i mod p_i and groups g of consecutive moduli (Q_g their product):
    y_g = sum_i v_i Q_g/p_i,  S = sum_g y_g weights_g,  q = round(S / P),  X = S - q P.
    """

    n: int
    product: int
    inverses: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    group_products: tuple[int, ...]
    group_weights: tuple[int, ...]
    limbs: int
    """32-bit limbs that hold X modulo a power of two with room for its sign."""
    quotient: Quotient


@cache
def crt(n: int, moduli: tuple[int, ...] = MODULI) -> Crt:
    """The reconstruction constants for the first ``n`` of ``moduli``."""
    p = moduli[:n]
    product = math.prod(p)
    groups = tuple(p[i : i + GROUP_SIZE] for i in range(0, n, GROUP_SIZE))
    group_products = tuple(math.prod(g) for g in groups)
    group_weights = tuple(product // q for q in group_products)
    limbs = 3 if n <= 12 else 4 if n <= 16 else 5
    assert product < 2 ** (32 * limbs)
    return Crt(
        n=n,
        product=product,
        inverses=tuple(pow(product // q, -1, q) for q in p),
        groups=groups,
        group_products=group_products,
        group_weights=group_weights,
        limbs=limbs,
        quotient=_quotient(product, max(group_weights)),
    )


def _quotient(product: int, largest_weight: int) -> Quotient:
    top = (largest_weight.bit_length() - 1) // 32
    limb = top if top == 0 or product >> 32 * top >= 2**11 else top - 1
    drop = max(0, (QUOTIENT_LIMIT * product >> 32 * limb).bit_length() - 32)
    unit = 1 << 32 * limb + drop
    shift = (product // unit).bit_length() - 1
    factor = ((unit << 33 + shift) + product) // (2 * product)
    assert 2**31 <= factor < 2**32
    # The quotient is right for |X| <= P (1/2 - 2^-8): what is left out of S and of the product, and the factor's
    # rounding.
    assert Fraction(3 * unit, product) + Fraction(1, 2**shift) + Fraction(QUOTIENT_LIMIT, 2**32) < Fraction(1, 2**8)
    return Quotient(top, limb, drop, factor, shift)


class Bound(NamedTuple):
    """H = sqrt(P (1/2 - 2^-8)) rounded down to ``mantissa 2^exponent``, 2^31 <= mantissa < 2^32.

    Rows and columns whose quantized Euclidean norms stay at or below H give |X| <= P (1/2 - 2^-8).
    """

    mantissa: int
    exponent: int


@cache
def bound(n: int, moduli: tuple[int, ...] = MODULI) -> Bound:
    """The norm bound H for the first ``n`` of ``moduli``."""
    product = crt(n, moduli).product
    squared = Fraction(product) * Fraction(127, 256)
    exponent = (product.bit_length() - 1) // 2 - 32
    mantissa = math.isqrt(int(squared / Fraction(4) ** exponent))
    if mantissa >= 2**32:
        exponent, mantissa = exponent + 1, mantissa >> 1
    assert 2**31 <= mantissa < 2**32
    assert mantissa**2 * Fraction(4) ** exponent <= squared
    return Bound(mantissa, exponent)


class LogBound(NamedTuple):
    """Logarithms of H in units of 1/256."""

    norm: int
    """log2 H rounded up, and one more"""
    product: int
    """log2 H^2 rounded down"""


@cache
def log_bound(n: int) -> LogBound:
    """log2 of the norm bound for the first ``n`` of ``MODULI``."""
    mantissa, exponent = bound(n)
    norm = (mantissa**256 - 1).bit_length() + 256 * exponent
    product = (mantissa**512).bit_length() - 1 + 512 * exponent
    return LogBound(norm + 1, product)


class Fewer(NamedTuple):
    """When a row takes the scale of fewer moduli than its product has: where that rounds few of its elements.

    Rows of float32 values do. Their integers are long because a few elements are tiny.
    """

    moduli: int
    most_rounded: int
    """Elements of the row that the scale of ``moduli`` moduli may round."""


def log2_product(n: int, moduli: tuple[int, ...] = MODULI) -> float:
    """log2 of the product of the first ``n`` of ``moduli``."""
    return math.log2(crt(n, moduli).product)
