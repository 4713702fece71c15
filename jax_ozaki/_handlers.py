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

from . import _ffi, _moduli
from ._compat import initialized_platforms
from ._operand import Axis, Operand
from ._plan import padded, padded_k, workspace_size


class Handlers:
    """The stages as FFI calls, for the platforms that have handlers."""

    def __init__(self, scratch_bytes: Callable[[Operand], int]) -> None:
        self._scratch_bytes = scratch_bytes

    def _call(self, stage: str, results: Any, *operands: Array, **attributes: int) -> Any:
        # Attributes are typed exactly: every one an int64.
        return jax.ffi.ffi_call(_ffi.target(stage), results)(
            *operands, **{name: np.int64(value) for name, value in attributes.items()}
        )

    def stats(self, operand: Operand, moduli: int) -> tuple[Array, Array]:
        types = (*_row_types(operand), self._scratch(operand))
        scale, table, _ = self._call("stats", types, operand.array, moduli=moduli, **_layout(operand))
        return scale, table

    def quantize(self, operand: Operand, moduli: int) -> tuple[Array, Array, Array]:
        types = (_residue_type(operand, moduli), *_row_types(operand), self._scratch(operand))
        residues, scale, table, _ = self._call("quantize", types, operand.array, **_layout(operand))
        return residues, scale, table

    def residues(self, operand: Operand, scale: Array, moduli: int) -> Array:
        return self._call("residues", _residue_type(operand, moduli), operand.array, scale, **_layout(operand))

    def grouped_mma(self, lhs: Array, rhs: Array, *, summand: bool = False) -> Array:
        batch, moduli, m, _ = lhs.shape
        return self._call("grouped_mma", _type((batch, moduli, m, padded(rhs.shape[2])), jnp.uint8), lhs, rhs)

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
        strides = {f"{name}_stride_{axis}": x.stride(axis) for name, x in (("a", lhs), ("b", rhs)) for axis in _AXES}
        result = _type((lhs.batch, lhs.rows, rhs.rows), jnp.float64)
        return self._call(
            stage, result, v, lhs_scale, rhs_scale, lhs.array, rhs.array, moduli=moduli, k=lhs.k, **strides
        )

    def _scratch(self, operand: Operand) -> jax.ShapeDtypeStruct:
        return _type((self._scratch_bytes(operand),), jnp.uint8)


class CudaHandlers(Handlers):
    """The handlers of NVIDIA GPUs, whose matrix kernels can also write partial sums of the CRT."""

    def __init__(self) -> None:
        super().__init__(_partial_statistics_bytes)
        self._partial_crt = _choice("JAX_OZAKI_CUDA_EPILOGUE", ("residues", "partial_crt")) == "partial_crt"
        self._strassen = _choice("JAX_OZAKI_CUDA_STRASSEN", ("auto", "never", "always"))

    def _call(self, stage: str, results: Any, *operands: Array, **attributes: int) -> Any:
        # Where there is no GPU, this lowers for another machine.
        if not _ffi.has_cuda() and "cuda" in initialized_platforms():
            raise RuntimeError(
                f"jax has an NVIDIA GPU here, but jax_ozaki no CUDA kernels: {_ffi.build_info()['cuda_problem']}. "
                "Install jax_ozaki again where a CUDA compiler (nvcc) is found, or use Contract.native()."
            )
        return super()._call(stage, results, *operands, **attributes)

    def grouped_mma(self, lhs: Array, rhs: Array, *, summand: bool = False) -> Array:
        if summand or not self._partial_crt:
            return super().grouped_mma(lhs, rhs)
        batch, moduli, m, _ = lhs.shape
        groups = -(-moduli // _moduli.GROUP_SIZE)
        return self._call("grouped_mma", _type((batch, groups, m, padded(rhs.shape[2])), jnp.uint32), lhs, rhs)

    def gains_by_strassen(self, lhs: Operand, rhs: Operand, moduli: int, budget: int) -> bool:
        """Whether one level of Strassen-Winograd is faster, and its quarters fit the workspace."""
        extents = lhs.rows, rhs.rows, lhs.k
        workspace = workspace_size(moduli, _STRASSEN_PRODUCTS * lhs.batch, *map(_half, extents))
        if moduli > _MAX_STRASSEN_MODULI or workspace > budget:
            return False
        # Measured on an H200: at 8192 more residues to move cost as much as the seventh of the work saves
        # with 15 moduli, and less with 14.
        smallest = {"auto": 8192 if moduli < 15 else 12288, "never": math.inf, "always": 2}
        return min(extents) >= smallest[self._strassen]

    def multiply_by_strassen(self, lhs: Operand, rhs: Operand, moduli: int) -> Array:
        """The product by seven products of quarters instead of eight, exact modulo every p: the same bits."""

        def quantize(operand: Operand, side: int) -> tuple[Array, Array]:
            scale, _ = self.stats(operand, moduli)
            shape = (operand.batch, _STRASSEN_PRODUCTS, moduli, _half(operand.rows), _strassen_depth(operand.k))
            residues = self._call(
                "strassen_quantize", _type(shape, jnp.uint8), operand.array, scale, side=side, **_layout(operand)
            )
            return lax.reshape(residues, (operand.batch * _STRASSEN_PRODUCTS, *shape[2:])), scale

        (lhs_residues, lhs_scale), (rhs_residues, rhs_scale) = quantize(lhs, 0), quantize(rhs, 1)
        v = self.grouped_mma(lhs_residues, rhs_residues, summand=True)
        v = lax.reshape(v, (lhs.batch, _STRASSEN_PRODUCTS, *v.shape[1:]))
        return self.combine(v, lhs_scale, rhs_scale, lhs, rhs, moduli, stage="strassen_combine")


_STRASSEN_PRODUCTS = 7
_MAX_STRASSEN_MODULI = 15


def _half(size: int) -> int:
    return -(-size // 2)


def _strassen_depth(k: int) -> int:
    """Bytes of a row of quarters: half of k in whole cache lines."""
    return -(-_half(k) // 128) * 128


def _partial_statistics_bytes(operand: Operand) -> int:
    """32 bytes for every chunk of a row."""
    return 32 * operand.batch * operand.rows * -(-operand.k // _moduli.CHUNK)


def _choice(variable: str, allowed: tuple[str, ...]) -> str:
    """The value of an environment variable, by default the first of those allowed."""
    value = os.environ.get(variable) or allowed[0]
    if value not in allowed:
        raise ValueError(f"{variable}={value!r}: allowed are {', '.join(allowed)}.")
    return value


_AXES: tuple[Axis, ...] = ("b", "r", "k")
_type = jax.ShapeDtypeStruct


def _layout(operand: Operand) -> dict[str, int]:
    strides = {f"stride_{axis}": operand.stride(axis) for axis in _AXES}
    return {"batch": operand.batch, "rows": operand.rows, "k": operand.k, **strides}


def _row_types(operand: Operand) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return (
        _type((operand.batch, operand.rows), jnp.int32),
        _type((operand.batch, operand.rows, 5), jnp.int64),
    )


def _residue_type(operand: Operand, moduli: int) -> jax.ShapeDtypeStruct:
    return _type((operand.batch, moduli, operand.rows, padded_k(operand.k)), jnp.uint8)
