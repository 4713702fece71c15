"""The stages as FFI calls: shapes, dtypes and attributes of the handlers, and what only NVIDIA GPUs have."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata

from . import _ffi, _moduli
from ._compat import initialized_platforms
from ._field import REAL, Field
from ._ladder_handlers import LadderHandlers, layout, strides
from ._operand import Operand
from ._plan import padded, padded_k, workspace_size


class Handlers(LadderHandlers):
    """The stages as FFI calls, for the platforms that have handlers."""

    def __init__(self, scratch_bytes: Callable[[Operand], int]) -> None:
        self._scratch_bytes = scratch_bytes

    def _call(self, stage: str, results: Any, *operands: Array, aliases: Any = None, **attributes: Any) -> Any:
        # The build is part of the program, so that jax's persistent cache holds none of other kernels. Attributes
        # are typed exactly: float32 as they are, every other one an int64.
        with set_xla_metadata(jax_ozaki_build=_ffi.build_info()["ffi_hash"]):
            return jax.ffi.ffi_call(_ffi.target(stage), results, input_output_aliases=aliases)(
                *operands,
                **{name: x if isinstance(x, np.float32) else np.int64(x) for name, x in attributes.items()},
            )

    def stats(self, operand: Operand, moduli: int) -> tuple[Array, Array]:
        types = (*_row_types(operand), self._scratch(operand))
        scale, table, _ = self._call(
            operand.field.prefix + "stats", types, operand.array, moduli=moduli, **layout(operand)
        )
        return scale, table

    def quantize(self, operand: Operand, moduli: int) -> tuple[Array, Array, Array]:
        types = (_residue_type(operand, moduli), *_row_types(operand), self._scratch(operand))
        stage = operand.field.prefix + "quantize"
        residues, scale, table, _ = self._call(stage, types, operand.array, **layout(operand))
        return residues, scale, table

    def residues(self, operand: Operand, scale: Array, moduli: int) -> Array:
        stage = operand.field.prefix + "residues"
        return self._call(stage, _residue_type(operand, moduli), operand.array, scale, **layout(operand))

    def grouped_mma(self, lhs: Array, rhs: Array, *, field: Field = REAL, summand: bool = False) -> Array:
        batch, planes, m, _ = lhs.shape
        result = _type((batch, planes, m, padded(rhs.shape[2])), jnp.uint8)
        return self._call(field.prefix + "grouped_mma", result, lhs, rhs)

    def combine(
        self,
        v: Array,
        lhs_scale: Array,
        rhs_scale: Array,
        lhs: Operand,
        rhs: Operand,
        moduli: int,
        stage: str = "combine",
    ) -> Array:
        result = _type((lhs.batch, lhs.rows, rhs.rows), lhs.field.dtype)
        operands = (v, lhs_scale, rhs_scale, lhs.array, rhs.array)
        return self._call(lhs.field.prefix + stage, result, *operands, moduli=moduli, **strides(lhs, rhs))

    def _scratch(self, operand: Operand) -> jax.ShapeDtypeStruct:
        return _type((self._scratch_bytes(operand),), jnp.uint8)


class CudaHandlers(Handlers):
    """The handlers of NVIDIA GPUs, whose matrix kernels can also write partial sums of the CRT."""

    def __init__(self, epilogue: str | None = None) -> None:
        super().__init__(_partial_statistics_bytes)
        epilogue = epilogue or _choice("JAX_OZAKI_CUDA_EPILOGUE", ("residues", "partial_crt"))
        self._partial_crt = epilogue == "partial_crt"
        self._strassen = _choice("JAX_OZAKI_CUDA_STRASSEN", ("auto", "never", "always"))

    def _call(self, stage: str, results: Any, *operands: Array, aliases: Any = None, **attributes: Any) -> Any:
        # Where there is no GPU, this lowers for another machine.
        if not _ffi.has_cuda() and "cuda" in initialized_platforms():
            raise RuntimeError(
                f"jax has an NVIDIA GPU here, but jax_ozaki no CUDA kernels: {_ffi.build_info()['cuda_problem']}. "
                "Install jax_ozaki again where a CUDA compiler (nvcc) is found, or use Contract.native()."
            )
        return super()._call(stage, results, *operands, aliases=aliases, **attributes)

    def grouped_mma(self, lhs: Array, rhs: Array, *, field: Field = REAL, summand: bool = False) -> Array:
        # Partial sums of the CRT hold the real part of a complex product only.
        if summand or field is not REAL or not self._partial_crt:
            return super().grouped_mma(lhs, rhs, field=field)
        batch, moduli, m, _ = lhs.shape
        groups = -(-moduli // _moduli.GROUP_SIZE)
        return self._call("grouped_mma", _type((batch, groups, m, padded(rhs.shape[2])), jnp.uint32), lhs, rhs)

    def _flag_scratch(self, batch: int, m: int, n: int) -> jax.ShapeDtypeStruct:
        """The number of flagged tiles and the place of each, two int32, for the smallest tiles there are."""
        return _type((8 * (1 + batch * -(-m // _SMALLEST_TILE) * -(-n // _SMALLEST_TILE)),), jnp.uint8)

    def gains_by_strassen(self, lhs: Operand, rhs: Operand, moduli: int, budget: int) -> bool:
        """Whether one level of Strassen-Winograd is faster, and its quarters fit the workspace."""
        extents = lhs.rows, rhs.rows, lhs.k
        planes = lhs.field.parts * moduli
        workspace = workspace_size(planes, _STRASSEN_PRODUCTS * lhs.batch, *map(_half, extents))
        # Measured on an H200.
        smallest = {"auto": 8192, "never": math.inf, "always": 2}
        return workspace <= budget and min(extents) >= smallest[self._strassen]

    def multiply_by_strassen(self, lhs: Operand, rhs: Operand, moduli: int) -> Array:
        """The product by seven products of quarters instead of eight, exact modulo every p: the same bits."""

        def quantize(operand: Operand, side: int) -> tuple[Array, Array]:
            scale, _ = self.stats(operand, moduli)
            planes = operand.field.parts * moduli
            shape = (operand.batch, _STRASSEN_PRODUCTS, planes, _half(operand.rows), _strassen_depth(operand.k))
            stage = operand.field.prefix + "strassen_quantize"
            residues = self._call(stage, _type(shape, jnp.uint8), operand.array, scale, side=side, **layout(operand))
            return lax.reshape(residues, (operand.batch * _STRASSEN_PRODUCTS, *shape[2:])), scale

        (lhs_residues, lhs_scale), (rhs_residues, rhs_scale) = quantize(lhs, 0), quantize(rhs, 1)
        v = self.grouped_mma(lhs_residues, rhs_residues, field=lhs.field, summand=True)
        v = lax.reshape(v, (lhs.batch, _STRASSEN_PRODUCTS, *v.shape[1:]))
        return self.combine(v, lhs_scale, rhs_scale, lhs, rhs, moduli, stage="strassen_combine")


_SMALLEST_TILE = 32
_STRASSEN_PRODUCTS = 7


def _half(size: int) -> int:
    return -(-size // 2)


def _strassen_depth(k: int) -> int:
    """Bytes of a row of quarters: half of k in whole cache lines."""
    return -(-_half(k) // 128) * 128


def _partial_statistics_bytes(operand: Operand) -> int:
    """32 bytes for every chunk of a row."""
    return 32 * operand.batch * operand.rows * -(-operand.field.parts * operand.k // _moduli.CHUNK)


def _choice(variable: str, allowed: tuple[str, ...]) -> str:
    """The value of an environment variable, by default the first of those allowed."""
    value = os.environ.get(variable) or allowed[0]
    if value not in allowed:
        raise ValueError(f"{variable}={value!r}: allowed are {', '.join(allowed)}.")
    return value


_type = jax.ShapeDtypeStruct


def _row_types(operand: Operand) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return (
        _type((operand.batch, operand.rows), jnp.int32),
        _type((operand.batch, operand.rows, 6), jnp.int64),
    )


def _residue_type(operand: Operand, moduli: int) -> jax.ShapeDtypeStruct:
    planes = operand.field.parts * moduli
    return _type((operand.batch, planes, operand.rows, padded_k(operand.k)), jnp.uint8)
