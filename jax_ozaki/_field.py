"""The two fields that products are emulated in, float64 reals and complex128 numbers, and their moduli."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _moduli


@dataclass(frozen=True)
class Field:
    """What differs between real and complex products.

    Integers of a complex row are those of a real row of its 2k parts, with one scale for both: the
    statistics, the norms and the bounds of a product of length k are those of 2k parts, because
    abs(Re X) and abs(Im X) are at most norm2(row) norm2(column) of the parts.
    """

    dtype: np.dtype[Any]
    moduli: tuple[int, ...]
    parts: int
    """float64s of an element, and INT8 matrix products a modulus: those by both roots of -1 where complex."""
    prefix: str
    """of the names of the FFI targets"""

    @property
    def chunk(self) -> int:
        """Consecutive k that the statistics of a row join exactly."""
        return _moduli.CHUNK // self.parts

    def planes(self, moduli: int) -> tuple[int, ...]:
        """The modulus of every plane of residues: all of the first root, then all of the other."""
        return self.moduli[:moduli] * self.parts

    def joined(self, parts: list[Array]) -> Array:
        """Elements from their float64 parts."""
        return parts[0] if self.parts == 1 else lax.complex(*parts)


REAL = Field(np.dtype(np.float64), _moduli.MODULI, 1, "")
COMPLEX = Field(np.dtype(np.complex128), _moduli.COMPLEX_MODULI, 2, "complex_")

DTYPES = (REAL.dtype, COMPLEX.dtype)


def of(dtype: Any) -> Field:
    """The field of float64 or complex128."""
    return COMPLEX if jnp.dtype(dtype) == COMPLEX.dtype else REAL
