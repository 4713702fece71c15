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
    """A value near 1/200 rounded to the nearest float32."""
    scale = 2**31  # 24 bits and 7 leading zeros
    nearest = round(value * scale)
    assert 2**23 <= nearest < 2**24
    return nearest / scale


def float_zero(p: int) -> int:
    return FLOAT_BITS + -(2**23) % p


def mod_p_float(s: int, p: int) -> int:
    """residue.h's mod_p_float, the fma rounded as IEEE does."""
    product = (2**23 + s - FLOAT_BITS) * Fraction(float32(Fraction(1, p)))
    quotient = round(product + FLOAT_BIAS)  # an integer: float32 has no fraction bits up there
    assert 2**23 <= quotient < 2**24
    return (s - p * (FLOAT_BITS + quotient - 2**23)) & 255


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
    for v in range(0, SUM_LIMIT, 97):
        r = mod_p_float(float_zero(p) + v, p)
        assert (r - v) % p == 0 and (r <= p or p == 256)
    # The multiply-and-shift quotient is exact below 2^31: its multiplier is at most p / 2^39 too big.
    assert 0 <= reciprocal(p) * p - 2**39 <= 2**8 and reciprocal(p) < 2**32
    for bits, count, top in ((NARROW_DIGIT, 3, 20), (WIDE_DIGIT, 4, 20)):
        largest = [2**bits - 1] * (count - 1) + [2**top - 1]
        assert p + dot(largest, powers(p, bits, count)) < DIGIT_LIMIT


def check_crt(m: ModuleType, n: int) -> None:
    crt, p, rng = m.crt(n), m.MODULI[:n], random.Random(n)
    cofactors = [multipliers(group) for group in crt.groups]
    assert max(map(max, cofactors)) < 2**16
    limit = int(Fraction(crt.product) * Fraction(127, 256))
    for x in [0, 1, -1, limit, -limit] + [rng.randint(-limit, limit) for _ in range(500)]:
        v = [x * inv % q for inv, q in zip(crt.inverses, p, strict=True)]
        v = [q if r == 0 and q < 256 and rng.random() < 0.5 else r for r, q in zip(v, p, strict=True)]
        y = [dot(v[m.GROUP_SIZE * g :][: len(c)], c) for g, c in enumerate(cofactors)]
        assert max(y) < 2**26
        q = quotient(crt, y)
        assert dot(y, crt.group_weights) - q * crt.product == x


def quotient(crt: Any, y: list[int]) -> int:
    """crt.h's quotient: the sums of each limb are joined down to one below that of the quotient."""
    limb, drop, factor, shift = crt.quotient
    sums = [dot(y, column) for column in zip(*(limbs(w, limb + 1) for w in crt.group_weights), strict=True)]
    assert max(sums) < 2**62
    leading = sums[limb] + (sums[limb - 1] >> 32 if limb else 0) >> drop
    assert leading < 2**32
    return (leading * factor >> 32) + (1 << shift - 1) >> shift


def check_bound(m: ModuleType, n: int) -> None:
    h = Fraction(m.bound(n).mantissa) * Fraction(2) ** m.bound(n).exponent
    assert h < (2**63 if n <= 16 else 2**79)  # what the quantizers and the digits hold


def reciprocal(p: int) -> int:
    return -(-(2**39) // p)


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
        reciprocal(p),
        float32(Fraction(1, p)),
        zero,
        words(powers(p, 8, 8)),
        zero + -NARROW_OFFSET % p,
        words(powers(p, 8, 12)),
        zero + -WIDE_OFFSET % p,
        powers(p, NARROW_DIGIT, 3)[1:],
        -NARROW_OFFSET % p,
        powers(p, WIDE_DIGIT, 4)[1:],
        -WIDE_DIGIT_OFFSET % p,
    ]


def epilogue_weights(m: ModuleType, n: int) -> list[int]:
    inverses = m.crt(n).inverses
    return [words(powers(p, 8, 4, inv))[0] for p, inv in zip(m.MODULI[:n], inverses, strict=True)]


def crt(m: ModuleType, n: int) -> list[object]:
    c = m.crt(n)
    return [
        [x for group in c.groups for x in multipliers(group)],
        [limbs(w, c.quotient.limb + 1) + [0] * (c.limbs - c.quotient.limb - 1) for w in c.group_weights],
        list(c.quotient),
        limbs(2 ** (32 * c.limbs) - c.product, c.limbs),
        epilogue_weights(m, n),
    ]


def tables(m: ModuleType) -> str:
    counts = range(m.MIN_MODULI, m.MAX_MODULI + 1)
    for p in m.MODULI:
        check_residues(p)
    for n in counts:
        check_crt(m, n)
        check_bound(m, n)
    bounds = [[0, 0]] * m.MIN_MODULI + [[m.bound(n).mantissa, m.bound(n).exponent] for n in counts]
    inverses = [[]] * m.MIN_MODULI + [list(m.crt(n).inverses) for n in counts]
    lines = [
        "// Written by generate_tables.py from _moduli.py: do not edit.",
        "#pragma once",
        "",
        '#include "common/constants.h"',
        "",
        "namespace ozaki {",
        "",
        f"constexpr int kMinModuli = {m.MIN_MODULI}, kMaxModuli = {m.MAX_MODULI};",
        f"constexpr int kChunk = {m.CHUNK};  // consecutive k joined exactly in the statistics",
        f"constexpr int kQuotientLimit = {m.QUOTIENT_LIMIT};  // S / P stays below",
        f"constexpr int kKBlock = {m.K_BLOCK};  // longest k that a 32-bit accumulator holds",
        "",
        "using ModulusTable = Table<Modulus, kMaxModuli>;",
        "constexpr ModulusTable kModuli = {{",
        *(f"    {braces(modulus(p))}," for p in m.MODULI),
        "}};",
        "",
        "// Indexed by the number of moduli; kInverses[N][i] is (P / p_i)^-1 mod p_i.",
        f"constexpr Table<Bound, kMaxModuli + 1> kBounds = {{{braces(bounds)}}};",
        f"constexpr uint32_t kInverses[kMaxModuli + 1][kMaxModuli] = {braces(inverses)};",
        "",
        "template <int N>",
        "constexpr Crt<N> kCrt = {};",
    ]
    for n in counts:
        lines += ["template <>", f"constexpr Crt<{n}> kCrt<{n}> = {braces(crt(m, n))};"]
    return "\n".join([*lines, "", "}  // namespace ozaki", ""])


if __name__ == "__main__":
    moduli_path, output = sys.argv[1:]
    Path(output).write_text(tables(load(moduli_path)))
