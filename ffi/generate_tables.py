#!/usr/bin/env python3
"""Writes tables.h, the C++ side of jax_ozaki/_moduli.py, and checks every number it writes.

usage: generate_tables.py MODULI_PY OUTPUT

The structures are those of common/constants.h.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

FLOAT_BITS = 0x4B000000  # the bit pattern of the float 2^23
FLOAT_BIAS = Fraction(2**23 - 32768 + 256) - Fraction(1, 2)
SUM_LIMIT = 2**20  # sums of bytes times weights stay below
COMPLEX_SUM_LIMIT = 2**21  # those of both parts of a complex number, and a constant as large
DIGIT_LIMIT = 2**31  # and sums of digits times weights below this
NARROW_OFFSET, WIDE_OFFSET, WIDE_DIGIT_OFFSET = 2**63, 2**95, 2**79
NARROW_DIGIT, WIDE_DIGIT = 22, 20  # bits


def load(path: str) -> ModuleType:
    """The module at ``path`` without its package, whose imports a build does not have."""
    spec = importlib.util.spec_from_file_location("_moduli", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def powers(p: int, bits: int, count: int, factor: int = 1) -> list[int]:
    """factor 2^(bits i) mod p."""
    return [factor * pow(2, bits * i, p) % p for i in range(count)]


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def words(weights: list[int]) -> list[int]:
    """Bytes packed into 32-bit words, the first one lowest."""
    return [sum(w << (8 * i) for i, w in enumerate(weights[j : j + 4])) for j in range(0, len(weights), 4)]


def limbs(value: int, count: int) -> list[int]:
    assert 0 <= value < 2 ** (32 * count)
    return [value >> (32 * i) & 0xFFFFFFFF for i in range(count)]


def float32(value: Fraction) -> float:
    """A value below 1 rounded to the nearest float32."""
    scale = 2 ** (23 + ((value.denominator - 1) // value.numerator).bit_length())
    nearest = round(value * scale)
    assert 2**23 <= nearest < 2**24
    return nearest / scale


def float_zero(p: int) -> int:
    return FLOAT_BITS + -(2**23) % p


def mod_p_float(s: int, p: int) -> int:
    """The low byte of residue.h's mod_p_float, the fma rounded as IEEE does; the others are `upper_bytes`."""
    product = (2**23 + s - FLOAT_BITS) * Fraction(float32(Fraction(1, p)))
    quotient = round(product + FLOAT_BIAS)  # an integer: float32 has no fraction bits up there
    assert 2**23 <= quotient < 2**24
    result = s - p * (FLOAT_BITS + quotient - 2**23)
    residue = result & 255
    assert p == 256 or (result - residue - upper_bytes(p)) % 2**32 == 0
    return residue


def upper_bytes(p: int) -> int:
    return (FLOAT_BITS * (1 - p) - 2**23 + (32768 - 256) * p) % 2**32


def check_mod_p_float(p: int, start: int, limit: int) -> None:
    for v in (*range(start, limit, 97), *range(limit - 2 * p, limit)):
        r = mod_p_float(float_zero(p) + v, p)
        assert (r - v) % p == 0 and (r <= p or p == 256)


def check_residues(p: int) -> None:
    rng = random.Random(p)
    values = [0, 1, -1, p, -p, 2**63 - 1, -(2**63), 2**79 - 1, -(2**79), 2**95 - 1, -(2**95)]
    values += [rng.randrange(-(2 ** rng.randrange(1, 96)), 2**95) for _ in range(200)]
    for x in values:
        for offset, size in ((NARROW_OFFSET, 8), (WIDE_OFFSET, 12)):
            if not 0 <= x + offset < 2 ** (8 * size):
                continue
            zero = float_zero(p) + -offset % p
            weights = powers(p, 8, size)
            s = zero + dot((x + offset).to_bytes(size, "little"), weights)
            assert s - float_zero(p) < SUM_LIMIT
            r = mod_p_float(s, p)
            assert (r - x) % p == 0 and (r <= p or p == 256)
    check_mod_p_float(p, 0, SUM_LIMIT)
    # The multiply-and-shift quotient is exact below 2^31: its multiplier is at most 2^-31 too big.
    factor, shift = reciprocal(p)
    assert 0 <= factor * p - 2**shift <= 2 ** (shift - 31) and factor < 2**32
    for bits, count, top in ((NARROW_DIGIT, 3, 20), (WIDE_DIGIT, 4, 20)):
        largest = [2**bits - 1] * (count - 1) + [2**top - 1]
        assert p + dot(largest, powers(p, bits, count)) < DIGIT_LIMIT


def check_imaginary_units(m: ModuleType, p: int) -> None:
    s, rng = m.imaginary_unit(p), random.Random(p)
    assert (s * s + 1) % p == 0 and 0 < s < p - s
    for size, offset in ((8, NARROW_OFFSET), (12, WIDE_OFFSET)):
        of_re, of_im = powers(p, 8, size), powers(p, 8, size, s)
        _, zero = root_weights(p, s, size, offset)
        lowest, highest = root_range(of_im)
        # A sum by either root is a float24 and at least that of zero, which mod_p_float needs.
        assert zero - highest >= float_zero(p) <= zero + lowest
        assert zero - float_zero(p) + 255 * sum(of_re) + max(highest, -lowest) < COMPLEX_SUM_LIMIT
        for _ in range(200):
            re, im = (rng.randrange(-limit, limit) for limit in (offset, offset // 2))  # check_bound
            r = zero + dot((re + offset).to_bytes(size, "little"), of_re)
            i = dot(imaginary_digits(im, size), of_im)
            assert lowest <= i <= highest
            for total, root in ((r + i, s), (r - i, p - s)):
                residue = mod_p_float(total, p)
                assert (residue - re - root * im) % p == 0 and residue <= p
    check_mod_p_float(p, SUM_LIMIT, COMPLEX_SUM_LIMIT)


def check_crt(m: ModuleType, n: int, moduli: tuple[int, ...]) -> None:
    crt, p, rng = m.crt(n, moduli), moduli[:n], random.Random(n)
    cofactors = [multipliers(group) for group in crt.groups]
    assert max(map(max, cofactors)) < 2**16
    limit = int(Fraction(crt.product) * Fraction(127, 256))
    for x in [0, 1, -1, limit, -limit] + [rng.randint(-limit, limit) for _ in range(500)]:
        v = [x * inv % q for inv, q in zip(crt.inverses, p, strict=True)]
        v = [q if r == 0 and q < 256 and rng.random() < 0.5 else r for r, q in zip(v, p, strict=True)]
        # The real part of a complex product is a sum of two: x inv = plus + minus. Strassen-Winograd adds up to five.
        most = 10 if moduli == m.COMPLEX_MODULI else 5
        if rng.random() < 0.5:
            v = [r + rng.randrange(most) * q for r, q in zip(v, p, strict=True)]
        y = [dot(v[m.GROUP_SIZE * g :][: len(c)], c) for g, c in enumerate(cofactors)]
        assert max(y) < 2**29
        q = quotient(crt, y)
        assert dot(y, crt.group_weights) - q * crt.product == x


def quotient(crt: Any, y: list[int]) -> int:
    """crt.h's quotient: the sums of each limb are joined down to one below that of the quotient."""
    top, limb, drop, factor, shift = crt.quotient
    sums = [dot(y, column) for column in zip(*(limbs(w, top + 1) for w in crt.group_weights), strict=True)]
    assert max(sums) < 2**64 - 2**42
    leading = sums[top] if limb == top else (sums[top] << 32) + sums[limb]
    assert leading < 2**63
    leading = leading + (sums[limb - 1] >> 32 if limb else 0) >> drop
    assert leading < 2**32
    return (leading * factor >> 32) + (1 << shift - 1) >> shift


def check_bound(m: ModuleType, n: int, moduli: tuple[int, ...]) -> None:
    bound = m.bound(n, moduli)
    h = Fraction(bound.mantissa) * Fraction(2) ** bound.exponent
    # What the quantizers and the digits hold; imaginary parts have digits of either sign.
    narrow, limit = (17, 2**62) if moduli == m.COMPLEX_MODULI else (16, 2**63)
    assert h < (limit if n <= narrow else 2**79)


def reciprocal(p: int) -> tuple[int, int]:
    """The factor 2^shift / p, rounded up, and the shift."""
    shift = 31 + (p - 1).bit_length()
    return -(-(2**shift) // p), shift


def multipliers(group: tuple[int, ...]) -> list[int]:
    product = 1
    for p in group:
        product *= p
    return [product // p for p in group]


def braces(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "{" + ", ".join(map(braces, value)) + "}"
    if isinstance(value, float):
        return value.hex() + "f"
    return f"{value}u" if isinstance(value, int) and value >= 0 else str(value)


def modulus(p: int) -> list[object]:
    zero = float_zero(p)
    return [
        p,
        *reciprocal(p),
        float32(Fraction(1, p)),
        zero,
        upper_bytes(p),
        words(powers(p, 8, 8)),
        zero + -NARROW_OFFSET % p,
        words(powers(p, 8, 12)),
        zero + -WIDE_OFFSET % p,
        powers(p, NARROW_DIGIT, 3)[1:],
        -NARROW_OFFSET % p,
        powers(p, WIDE_DIGIT, 4)[1:],
        -WIDE_DIGIT_OFFSET % p,
    ]


def imaginary_digits(x: int, size: int) -> list[int]:
    """Those of complex.h: bytes, the four highest from -128 to 127."""
    low = x % 2 ** (8 * (size - 4))
    high = [b - 128 for b in ((x >> 8 * (size - 4)) + 0x80808080).to_bytes(4, "little")]
    return [*low.to_bytes(size - 4, "little"), *high]


def root_range(weights: list[int]) -> tuple[int, int]:
    """The lowest and the highest sum of an imaginary part."""
    return -128 * sum(weights[-4:]), 255 * sum(weights[:-4]) + 127 * sum(weights[-4:])


def root_weights(p: int, s: int, size: int, offset: int) -> list[object]:
    """The weights of an imaginary part of ``size`` bytes, and the constant `zero`."""
    weights = powers(p, 8, size, s)
    largest = max(map(abs, root_range(weights)))
    return [words(weights), float_zero(p) + largest + (-offset - largest) % p]


def imaginary_unit(m: ModuleType, p: int) -> list[object]:
    s = m.imaginary_unit(p)
    narrow, wide = root_weights(p, s, 8, NARROW_OFFSET), root_weights(p, s, 12, WIDE_OFFSET)
    return [s, p - s, *narrow, *wide]


def inverses(m: ModuleType, n: int, moduli: tuple[int, ...]) -> list[int]:
    """(P / p_i)^-1 mod p_i; for complex products half of it."""
    of_set = m.crt(n, moduli).inverses
    if moduli == m.MODULI:
        return list(of_set)
    return [x * pow(2, -1, p) % p for x, p in zip(of_set, moduli, strict=False)]


def crt(m: ModuleType, n: int, moduli: tuple[int, ...]) -> list[object]:
    c = m.crt(n, moduli)
    return [
        [x for group in c.groups for x in multipliers(group)],
        [limbs(w, c.quotient.top + 1) + [0] * (c.limbs - c.quotient.top - 1) for w in c.group_weights],
        list(c.quotient),
        limbs(2 ** (32 * c.limbs) - c.product, c.limbs),
        [words(powers(p, 8, 4, x))[0] for p, x in zip(moduli, inverses(m, n, moduli), strict=False)],
    ]


def of_set(m: ModuleType, moduli: tuple[int, ...], name: str) -> list[str]:
    """The tables of one modulus set; ``name`` distinguishes theirs."""
    counts = range(m.MIN_MODULI, len(moduli) + 1)
    for p in moduli:
        check_residues(p)
    for n in counts:
        check_crt(m, n, moduli)
        check_bound(m, n, moduli)
    bounds = [[0, 0]] * m.MIN_MODULI + [list(m.bound(n, moduli)) for n in counts]
    of_count = [[]] * m.MIN_MODULI + [inverses(m, n, moduli) for n in counts]
    size = f"kMax{name}Moduli"
    lines = [
        f"constexpr Table<Modulus, {size}> k{name}Moduli = {{{{",
        *(f"    {braces(modulus(p))}," for p in moduli),
        "}};",
        "",
        f"constexpr Table<Bound, {size} + 1> k{name}Bounds = {{{braces(bounds)}}};",
        f"constexpr uint32_t k{name}Inverses[{size} + 1][{size}] = {braces(of_count)};",
        "",
        "template <int N>",
        f"constexpr Crt<N> k{name}Crt = {{}};",
    ]
    for n in counts:
        lines += ["template <>", f"constexpr Crt<{n}> k{name}Crt<{n}> = {braces(crt(m, n, moduli))};"]
    return [*lines, ""]


def tables(m: ModuleType) -> str:
    for p in m.COMPLEX_MODULI:
        check_imaginary_units(m, p)
    log_bounds = [[0, 0]] * m.MIN_MODULI + [list(m.log_bound(n)) for n in range(m.MIN_MODULI, m.MAX_MODULI + 1)]
    lines = [
        "// Written by generate_tables.py from _moduli.py: do not edit.",
        "#pragma once",
        "",
        '#include "common/constants.h"',
        "",
        "namespace ozaki {",
        "",
        f"constexpr int kMinModuli = {m.MIN_MODULI}, kMaxModuli = {m.MAX_MODULI};",
        f"constexpr int kMaxComplexModuli = {m.MAX_COMPLEX_MODULI};",
        f"constexpr int kChunk = {m.CHUNK};  // consecutive k joined exactly in the statistics",
        f"constexpr int kQuotientLimit = {m.QUOTIENT_LIMIT};  // S / P stays below",
        f"constexpr int kKBlock = {m.K_BLOCK};  // longest k that a 32-bit accumulator holds",
        "",
        "// Indexed by the number of moduli: bounds, CRTs, and inverses[N][i] = (P / p_i)^-1 mod p_i.",
        *of_set(m, m.MODULI, ""),
        f"constexpr Table<LogBound, kMaxModuli + 1> kLogBounds = {{{braces(log_bounds)}}};",
        "",
        "// The same for complex products, with half of each inverse.",
        *of_set(m, m.COMPLEX_MODULI, "Complex"),
        "constexpr Table<ImaginaryUnit, kMaxComplexModuli> kImaginaryUnits = {{",
        *(f"    {braces(imaginary_unit(m, p))}," for p in m.COMPLEX_MODULI),
        "}};",
    ]
    return "\n".join([*lines, "", "}  // namespace ozaki", ""])


if __name__ == "__main__":
    moduli_path, output = sys.argv[1:]
    Path(output).write_text(tables(load(moduli_path)))
