"""Products that are right to twice float64, and the errors of others against them.

Each operand is cut into slices of few-bit integers, row by row of A and column by column of B. Native float64
products of slices are exact whatever the order of their sums, as 2 bits + log2(k) <= 53, and a double-double
adds them up (K. Ozaki et al., Numer. Algorithms 59, 95 (2012)). Outputs recomputed with fractions check that
the native product was exact indeed: on an H200 it was not, so all of this runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

FULL = 2048
"""Rows of a product, over its batch, and columns up to which all are compared; a sample of so many columns beyond."""

SAMPLED_ROWS = 128
"""Of more rows: enough to meet every tile of 128 up to 16384."""
MAX_SLICES = 24
UNIT = 2.0**-53


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("product", "absolute", "norms", "maxima", "largest"),
    meta_fields=("k",),
)
@dataclass(frozen=True)
class Magnitudes:
    """What bounds are made of, for every output compared: arrays of one shape."""

    k: int
    product: Array
    """|AB|"""
    absolute: Array
    """|A||B|"""
    norms: Array
    """norm2(row) norm2(column)"""
    maxima: Array
    """max|row| norm1(column) + norm1(row) max|column|"""
    largest: Array
    """max|row| max|column|"""


class Reference:
    """The product of ``a`` and ``b``, [m, k] x [k, n] or batches of them: all its outputs, or a sample of many."""

    def __init__(self, a: Array, b: Array) -> None:
        rows, batch = a.shape[-2], a.size // (a.shape[-2] * a.shape[-1])
        self.rows = _sample(rows, rows if rows * batch <= FULL else SAMPLED_ROWS // batch)
        self.columns = _sample(b.shape[-1], FULL)
        a, b = jax.device_put((a[..., self.rows, :], b[..., self.columns]), _host())
        bits = (53 - (a.shape[-1] - 1).bit_length()) // 2
        lhs, lhs_scale = _below_one(a, -1)
        rhs, rhs_scale = _below_one(b, -2)
        left = list(_slices(lhs, bits))
        high = low = jnp.zeros((*a.shape[:-1], b.shape[-1]))
        negligible = float(_least(lhs, rhs)) * 2.0**-108 / a.shape[-1]
        for t, right in enumerate(_slices(rhs, bits), start=1):
            for s, part in enumerate(left, start=1):
                if 2.0 ** (-bits * (s + t - 2)) >= negligible:  # what an element of this product is at most
                    high, low = _add_product(high, low, part, right, 2.0 ** (-bits * (s + t)))
        self.high, self.low, self.magnitudes = _finish(a, b, high, low, lhs_scale * rhs_scale)
        self._check(a, b)

    def _check(self, a: Array, b: Array) -> None:
        """Recompute the first and the last output of the sample exactly; ArithmeticError where they differ."""
        for corner in (0, -1):
            at = (corner,) * a.ndim
            row, column = (np.asarray(x).tolist() for x in (a[at[:-1]], b[(*at[:-2], slice(None), corner)]))
            exact = sum((Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)), Fraction())
            found = Fraction(float(self.high[at])) + Fraction(float(self.low[at]))
            if abs(found - exact) > Fraction(float(self.magnitudes.absolute[at])) / 2**90:
                raise ArithmeticError(
                    "The reference differs from exact arithmetic: the native float64 product of integers below "
                    "2^53 is not exact here."
                )

    def errors(self, c: Array, bound: Array) -> dict[str, float]:
        """Errors of ``c``, whose outputs compared are allowed ``bound`` each.

        Those relative to |A||B| and to norm2(row) norm2(column) are in units of 2^-53; ``share`` is the largest
        share of its bound that an output takes.
        """
        c = jax.device_put(c[..., self.rows, :][..., self.columns], _host())
        found = _errors(c, self.high, self.low, self.magnitudes, bound)
        return {name: float(value) for name, value in found.items()}


def _host() -> jax.Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        raise RuntimeError("The reference needs JAX's CPU platform, which JAX_PLATFORMS leaves out.") from None


def _sample(size: int, count: int) -> slice | np.ndarray[Any, Any]:
    """Indices from the first to the last, or all of them."""
    if size <= count:
        return slice(None)
    return np.linspace(0, size - 1, max(1, count), dtype=int)


@partial(jax.jit, static_argnums=1)
def _below_one(x: Array, axis: int) -> tuple[Array, Array]:
    """x divided by the smallest power of two above every magnitude along ``axis``, and that power."""
    scale = jnp.ldexp(1.0, jnp.frexp(abs(x).max(axis, keepdims=True))[1])
    return x / scale, scale


@jax.jit
def _least(x: Array, y: Array) -> Array:
    """The smallest of the outputs of |x||y| that are not zero."""
    absolute = abs(x) @ abs(y)
    return jnp.where(absolute > 0, absolute, jnp.inf).min()


def _slices(x: Array, bits: int) -> Iterator[Array]:
    """Integers s_1, s_2, ... with x = sum_t s_t 2^(-t bits), |x| < 1, |s_t| <= 2^bits."""
    rest = x
    for _ in range(MAX_SLICES):
        if not rest.any():
            return
        part, rest = _cut(rest, 2.0**bits)
        yield part
    raise ArithmeticError(f"An operand spans more than {MAX_SLICES * bits} bits: no reference can be computed.")


@jax.jit
def _cut(x: Array, power: float) -> tuple[Array, Array]:
    shifted = x * power
    part = jnp.round(shifted)
    return part, shifted - part


@jax.jit
def _add_product(high: Array, low: Array, left: Array, right: Array, scale: float) -> tuple[Array, Array]:
    term = (left @ right) * scale
    total = high + term
    kept = total - high
    return total, low + ((high - (total - kept)) + (term - kept))


@jax.jit
def _finish(a: Array, b: Array, high: Array, low: Array, scale: Array) -> tuple[Array, Array, Magnitudes]:
    x, y = abs(a), abs(b)
    row_max, column_max = x.max(-1, keepdims=True), y.max(-2, keepdims=True)
    magnitudes = Magnitudes(
        k=a.shape[-1],
        product=abs(high * scale),
        absolute=x @ y,
        norms=jnp.linalg.norm(a, axis=-1, keepdims=True) * jnp.linalg.norm(b, axis=-2, keepdims=True),
        maxima=row_max * y.sum(-2, keepdims=True) + x.sum(-1, keepdims=True) * column_max,
        largest=row_max * column_max,
    )
    return high * scale, low * scale, magnitudes


@jax.jit
def _errors(c: Array, high: Array, low: Array, of: Magnitudes, bound: Array) -> dict[str, Array]:
    error = abs((c - high) - low)
    error = jnp.where(jnp.isnan(error), jnp.inf, error)

    def largest(scale: Array) -> Array:
        return jnp.where(error == 0, 0.0, error / scale).max()

    return {
        "max_abs_error": error.max(),
        "max_rel_error": largest(of.product),
        "rms_error": jnp.sqrt((error**2).mean()),
        "max_error_u": largest(of.absolute) / UNIT,
        "max_norm_error_u": largest(of.norms) / UNIT,
        "share": largest(bound),
    }
