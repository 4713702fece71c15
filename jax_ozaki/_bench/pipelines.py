"""The product stage by stage, with three ways to multiply: what the pipelines share, and where they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _ffi, _moduli, _stages
from .._handlers import CudaHandlers
from .._operand import Operand
from .._plan import padded
from .operands import Shape
from .timing import Variant
from .unavailable import Unavailable

MAX_SIGNED_K = 2**17
"""Longest contraction of signed bytes that a signed 32-bit sum holds."""

Step = tuple[str, Callable[..., Any]]


@dataclass(frozen=True)
class Pipeline:
    """Quantize, the ``steps`` that lead from residues to what ``combine`` reads, combine."""

    shape: Shape
    moduli: int
    stages: _stages.Stages
    steps: tuple[Step, ...]
    compiler_options: dict[str, Any] | None = None

    @staticmethod
    def of(name: Literal["staged", "grouped", "partial-crt"], moduli: int, shape: Shape) -> Pipeline:
        """Raises Unavailable where this machine has no such pipeline."""
        platform = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
        by_platform = _stages.by_platform()
        stages = by_platform.get(platform, by_platform[None])
        match name:
            case "staged":
                if shape.k > MAX_SIGNED_K:
                    raise Unavailable(f"signed bytes fill a 32-bit sum beyond k = {MAX_SIGNED_K}")
                # Triton's kernels keep XLA from calling cuBLASLt.
                options = {"xla_gpu_enable_triton_gemm": False} if platform == "cuda" else None
                return Pipeline(shape, moduli, stages, _staged_steps(moduli), options)
            case "partial-crt":
                if platform != "cuda" or not _ffi.has_cuda():
                    raise Unavailable("only the CUDA kernels have this epilogue")
                stages = CudaHandlers(epilogue="partial_crt")
        return Pipeline(shape, moduli, stages, (("grouped_mma", stages.grouped_mma),))

    def _operand(self, x: Array, side: str) -> Operand:
        x = lax.reshape(x, (self.shape.batch, *x.shape[-2:]))
        return Operand(x, "brk" if side == "lhs" else "bkr")

    def _quantize(self, x: Array, *, side: str) -> tuple[Array, Array]:
        residues, scale, _ = self.stages.quantize(self._operand(x, side), self.moduli)
        return residues, scale

    def _combine(self, v: Array, lhs_scale: Array, rhs_scale: Array, a: Array, b: Array) -> Array:
        operands = self._operand(a, "lhs"), self._operand(b, "rhs")
        return self.stages.combine(v, lhs_scale, rhs_scale, *operands, self.moduli)

    def product(self, a: Array, b: Array) -> Array:
        (lhs, lhs_scale), (rhs, rhs_scale) = self._quantize(a, side="lhs"), self._quantize(b, side="rhs")
        between: Any = (lhs, rhs)
        for _, step in self.steps:
            between = step(*between) if isinstance(between, tuple) else step(between)
        c = self._combine(between, lhs_scale, rhs_scale, a, b)
        return lax.reshape(c, (*a.shape[:-1], b.shape[-1]))

    def variants(self, a: Array, b: Array) -> dict[str, Variant]:
        """Every stage alone, in order."""
        variants: dict[str, Variant] = {}

        def stage(name: str, function: Callable[..., Any], *operands: Array) -> Any:
            program = jax.jit(function).lower(*operands).compile(self.compiler_options)
            variants[name] = Variant(partial(program, *operands))
            return program(*operands)

        lhs, lhs_scale = stage("quantize_lhs", partial(self._quantize, side="lhs"), a)
        rhs, rhs_scale = stage("quantize_rhs", partial(self._quantize, side="rhs"), b)
        between: Any = (lhs, rhs)
        for name, step in self.steps:
            between = stage(name, step, *(between if isinstance(between, tuple) else (between,)))
        stage("combine", self._combine, between, lhs_scale, rhs_scale, a, b)
        return variants


def _staged_steps(moduli: int) -> tuple[Step, ...]:
    """XLA's own INT8 product for each modulus. It multiplies signed bytes, so the residues are balanced first."""
    of_each = list(enumerate(_moduli.MODULI[:moduli]))

    def balance(lhs: Array, rhs: Array) -> tuple[Array, ...]:
        def signed(residues: Array, p: int) -> Array:
            wide = residues.astype(jnp.int16)
            return jnp.where(wide > 127, wide - p, wide).astype(jnp.int8)

        # An array for each modulus: a slice of one array would be copied for the product.
        return tuple(signed(x[:, i], p) for x in (lhs, rhs) for i, p in of_each)

    def multiply(*operands: Array) -> tuple[Array, ...]:
        def product(x: Array, y: Array) -> Array:
            if x.shape[0] == 1:  # a plain matrix product, which is what cuBLASLt is called for
                contract = (((1,), (1,)), ((), ()))
                return lax.dot_general(x[0], y[0], contract, preferred_element_type=jnp.int32)[None]
            return lax.dot_general(x, y, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.int32)

        return tuple(map(product, operands[:moduli], operands[moduli:]))

    def reduce(*products: Array) -> Array:
        inverses = _moduli.crt(moduli).inverses
        v = jnp.stack([products[i] % p * inverses[i] % p for i, p in of_each], axis=1).astype(jnp.uint8)
        n = v.shape[-1]
        return jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, padded(n) - n)))

    return ("balance", balance), ("int8_products", multiply), ("reduce", reduce)
