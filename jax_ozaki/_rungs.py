"""The rungs of a certified product's ladder, the tiles that share work and the part of k that bounds |A||B|.

``ffi/common/certificate.h`` and ``planes.h`` have the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

UNDECIDED, COARSE, FINE, WIDE, SUM = range(5)
"""The rung that gives an output: 1 and 2 multiply modulo the first N1 moduli, certified by coarse and by
fine magnitudes; 3 takes N2 moduli, 4 adds the products up."""

RUNGS = (COARSE, FINE, WIDE, SUM)

FIRST = 1 << COARSE | 1 << FINE
"""The rungs, as a set, that share the first product."""

TILE = 128
"""Outputs of a tile, in either direction. Stages know it by a word: the set of the rungs of its outputs in the lowest
byte; in the next two, how many of the 64 parts of k, first and last ones, no row of it shares with any column."""

SKIPPED_BEFORE, SKIPPED_AFTER = 8, 16

COARSE_PLANES, FINE_PLANES = 1, 4
COARSE_BITS, FINE_BITS = 8, 14

PLANE_BLOCK = 64
"""Consecutive k that a magnitude product takes or leaves together."""

_LONGEST = {COARSE_PLANES: 1 << 15, FINE_PLANES: 1 << 17}  # sums of bytes of 8 and of 7 bits fit 32
_ENOUGH = {1 << 10: 2, 1 << 12: 4}  # from here a half, a quarter of k bound |A||B| well enough


def tiles(extent: int) -> int:
    return -(-extent // TILE)


def plane_step(k: int, planes: int) -> int:
    """Of the blocks of k, every how many-th is summed."""
    enough = [step for longest, step in _ENOUGH.items() if k >= longest] if planes == COARSE_PLANES else []
    return max(1, -(-k // _LONGEST[planes]), *enough)


def kept(k: int, step: int) -> int:
    """How many k a magnitude product sums."""
    whole = -(-k // PLANE_BLOCK)
    blocks = -(-whole // step)
    return PLANE_BLOCK * (blocks - 1) + min(PLANE_BLOCK, k - PLANE_BLOCK * step * (blocks - 1))


def sets(words: Array) -> Array:
    """The tiles for stages that see another k: they skip nothing."""
    return words & 0xFF


class Certified(NamedTuple):
    """What the rows of one operand bring to the certificates of their outputs."""

    scale: Array
    """int32[batch, rows]"""
    statistics: Array
    """int64[batch, rows, 8]"""
    coarse: Array | None = None
    """uint8[batch, 1, rows, padded kept k]: coarse magnitudes, where they are known."""


class RungModuli(NamedTuple):
    """Numbers of moduli."""

    first: int
    """Of the first rung."""
    fewer: int
    """Of its rows that take the scale of fewer; ``first`` where none do."""
    wide: int
    """Of the third rung."""


class RungNeeds(NamedTuple):
    """How many of their moduli the rungs need, and the scales of the third."""

    first: Array
    """int32[1]: so many hold every X of the first rung."""
    wide: Array
    """int32[1]: the same of the third."""
    lhs_wide: Array
    rhs_wide: Array
    """int32[batch, rows]"""


class RungMap(NamedTuple):
    """Which rung gives each output, tile by tile."""

    rung: Array
    """uint8[batch, m, padded n]; 0 is undecided, and the padding."""
    tiles: Array
    """uint32[batch, m tiles, n tiles]: words of tiles."""
    worst: Array
    """float32, shaped as the tiles: the largest certified error of the outputs decided last, in u |A||B|,
    before the final rounding."""
