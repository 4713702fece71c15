"""The product stage by stage: what the pipelines share, and where they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _ffi, _moduli, _stages
from .._handlers import CudaHandlers
from .._operand import Operand
from .._plan import padded
from . import ablation
from .operands import Shape
from .timing import Variant
from .unavailable import Unavailable

MAX_SIGNED_K = 2**17
"""Longest contraction of signed bytes that a signed 32-bit sum holds."""

Name = Literal["staged", "grouped", "partial-crt", "grouped-sync", "partial-crt-sync", "full-fused", "local-prologue"]
NAMES: tuple[Name, ...] = get_args(Name)


@dataclass(frozen=True)
class Stage:
    """``outputs`` = function(``inputs``), by the names of values: the operands are a and b, the product is c."""

    name: str
    function: Callable[..., Any]
    inputs: str
    outputs: str

    def operands(self, values: dict[str, Any]) -> list[Any]:
        return [values[name] for name in self.inputs.split()]

    def assign(self, values: dict[str, Any], found: Any) -> None:
        names = self.outputs.split()
        values.update(zip(names, found if len(names) > 1 else (found,), strict=True))


Programs = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class Pipeline:
    """The stages of a product of one shape."""

    shape: Shape
    moduli: int
    stages: tuple[Stage, ...]
    compiler_options: dict[str, Any] | None = None

    @staticmethod
    def of(name: Name, moduli: int, shape: Shape) -> Pipeline:
        """Raises Unavailable where this machine has no such pipeline."""
        platform = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
        by_platform = _stages.by_platform()
        do = _Stages(by_platform.get(platform, by_platform[None]), shape, moduli)
        options: dict[str, Any] | None = None
        match name:
            case "staged":
                if shape.k > MAX_SIGNED_K:
                    raise Unavailable(f"signed bytes fill a 32-bit sum beyond k = {MAX_SIGNED_K}")
                # Triton's kernels keep XLA from calling cuBLASLt.
                options = {"xla_gpu_enable_triton_gemm": False} if platform == "cuda" else None
                stages = (*do.quantize, *_staged(moduli), do.combine)
            case "grouped":
                stages = (*do.quantize, do.multiply(do.stages.grouped_mma), do.combine)
            case "partial-crt":
                if platform != "cuda" or not _ffi.has_cuda():
                    raise Unavailable("only the CUDA kernels have this epilogue")
                multiply = CudaHandlers(epilogue="partial_crt").grouped_mma
                stages = (*do.quantize, do.multiply(multiply), do.combine)
            case "grouped-sync" | "partial-crt-sync":
                ablation.require()
                multiply = partial(ablation.mma_sync, partial_crt=name == "partial-crt-sync")
                stages = (*do.quantize, do.multiply(multiply), do.combine)
            case "full-fused":
                ablation.require()
                inputs = "lhs rhs lhs_scale rhs_scale a b"
                stages = (*do.quantize, Stage("full_fused", ablation.full_fused, inputs, "c"))
            case "local-prologue":
                ablation.require()
                multiply = partial(ablation.local_prologue, moduli=moduli)
                stages = (*do.stats, Stage("local_prologue", multiply, "a b lhs_scale rhs_scale", "v"), do.combine)
        return Pipeline(shape, moduli, stages, options)

    def product(self, a: Array, b: Array) -> Array:
        values = self._values(a, b)
        for stage in self.stages:
            stage.assign(values, stage.function(*stage.operands(values)))
        return lax.reshape(values["c"], (*a.shape[:-1], b.shape[-1]))

    def compiled(self) -> Programs:
        """A program for every stage alone, in order."""
        batch, m, n, k = self.shape.batch, self.shape.m, self.shape.n, self.shape.k
        values: dict[str, Any] = {
            "a": jax.ShapeDtypeStruct((batch, m, k), self.shape.dtype),
            "b": jax.ShapeDtypeStruct((batch, k, n), self.shape.dtype),
        }
        programs: Programs = {}
        for stage in self.stages:
            operands = stage.operands(values)
            programs[stage.name] = jax.jit(stage.function).lower(*operands).compile(self.compiler_options)
            stage.assign(values, jax.eval_shape(stage.function, *operands))
        return programs

    def variants(self, programs: Programs, a: Array, b: Array) -> dict[str, Variant]:
        """Calls of the programs, on the values that they get in this product."""
        variants: dict[str, Variant] = {}
        values = self._values(a, b)
        for stage in self.stages:
            call = partial(programs[stage.name], *stage.operands(values))
            variants[stage.name] = Variant(call)
            stage.assign(values, call())
        return variants

    def _values(self, a: Array, b: Array) -> dict[str, Any]:
        return {name: lax.reshape(x, (self.shape.batch, *x.shape[-2:])) for name, x in (("a", a), ("b", b))}


class _Stages:
    """What pipelines are made of."""

    def __init__(self, stages: _stages.Stages, shape: Shape, moduli: int) -> None:
        self.stages, self._moduli = stages, moduli
        self.quantize = tuple(self._of_side("quantize", side, f"{side} {side}_scale") for side in ("lhs", "rhs"))
        self.stats = tuple(self._of_side("stats", side, f"{side}_scale") for side in ("lhs", "rhs"))
        self.combine = Stage("combine", self._combine, "v lhs_scale rhs_scale a b", "c")

    def multiply(self, function: Callable[..., Any]) -> Stage:
        return Stage("grouped_mma", function, "lhs rhs", "v")

    def _of_side(self, name: Literal["quantize", "stats"], side: str, outputs: str) -> Stage:
        def function(x: Array) -> Any:
            *found, _ = getattr(self.stages, name)(_operand(x, side), self._moduli)
            return found if len(found) > 1 else found[0]

        return Stage(f"{name}_{side}", function, "a" if side == "lhs" else "b", outputs)

    def _combine(self, v: Array, lhs_scale: Array, rhs_scale: Array, a: Array, b: Array) -> Array:
        operands = _operand(a, "lhs"), _operand(b, "rhs")
        return self.stages.combine(v, lhs_scale, rhs_scale, *operands, self._moduli)


def _operand(x: Array, side: str) -> Operand:
    return Operand(x, "brk" if side == "lhs" else "bkr")


def _staged(moduli: int) -> tuple[Stage, ...]:
    """XLA's own INT8 product for each modulus. It multiplies signed bytes, so the residues are balanced first."""
    of_each = list(enumerate(_moduli.MODULI[:moduli]))

    def balance(lhs: Array, rhs: Array) -> tuple[Array, ...]:
        def signed(residues: Array, p: int) -> Array:
            wide = residues.astype(jnp.int16)
            return jnp.where(wide > 127, wide - p, wide).astype(jnp.int8)

        # An array for each modulus: a slice of one array would be copied for the product.
        return tuple(signed(x[:, i], p) for x in (lhs, rhs) for i, p in of_each)

    def multiply(operands: tuple[Array, ...]) -> tuple[Array, ...]:
        def product(x: Array, y: Array) -> Array:
            if x.shape[0] == 1:  # a plain matrix product, which is what cuBLASLt is called for
                contract = (((1,), (1,)), ((), ()))
                return lax.dot_general(x[0], y[0], contract, preferred_element_type=jnp.int32)[None]
            return lax.dot_general(x, y, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.int32)

        return tuple(map(product, operands[:moduli], operands[moduli:]))

    def reduce(products: tuple[Array, ...]) -> Array:
        inverses = _moduli.crt(moduli).inverses
        v = jnp.stack([products[i] % p * inverses[i] % p for i, p in of_each], axis=1).astype(jnp.uint8)
        n = v.shape[-1]
        return jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, padded(n) - n)))

    return (
        Stage("balance", balance, "lhs rhs", "balanced"),
        Stage("int8_products", multiply, "balanced", "products"),
        Stage("reduce", reduce, "products", "v"),
    )
