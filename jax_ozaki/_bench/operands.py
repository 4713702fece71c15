"""Shapes of products, and the operands that they are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array


@dataclass(frozen=True)
class Shape:
    """A ``batch`` of (m, k) x (k, n) products of ``dtype``."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "float64"

    @property
    def lhs(self) -> tuple[int, ...]:
        return (self.batch, self.m, self.k) if self.batch > 1 else (self.m, self.k)

    @property
    def rhs(self) -> tuple[int, ...]:
        return (self.batch, self.k, self.n) if self.batch > 1 else (self.k, self.n)

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return batch + (str(self.n) if self.m == self.n == self.k else f"({self.m}, {self.n}, {self.k})")


def operands(shape: Shape, phi: float, seed: int = 0) -> tuple[Array, Array]:
    """A and B with elements (rand - 1/2) exp(phi randn), wider in exponent the larger ``phi`` is.

    Every row of A and every column of B has its own random factor in [1, 2) besides: uniform numbers alone lie
    on a grid on which a scheme of 53 bits is exact.
    """
    lhs, rhs = jax.random.split(jax.random.key(seed))
    return _rows(lhs, phi, shape.lhs), jnp.swapaxes(_rows(rhs, phi, (*shape.rhs[:-2], shape.n, shape.k)), -1, -2)


@partial(jax.jit, static_argnums=2)
def _rows(key: Array, phi: float, shape: tuple[int, ...]) -> Array:
    uniform, normal, factors = jax.random.split(key, 3)
    spread = jnp.exp(phi * jax.random.normal(normal, shape))
    factor = jax.random.uniform(factors, (*shape[:-1], 1), minval=1, maxval=2)
    return (jax.random.uniform(uniform, shape) - 0.5) * spread * factor
