"""The pipeline of a product, built out of one FFI call a stage.

Stages are separate calls in the HLO: XLA owns every buffer of residues and merges equal
quantizations. A platform without handlers runs the stages of ``_reference`` instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _ffi, _moduli, _reference
from ._compat import initialized_platforms
from ._operand import Axis, Operand
from ._plan import Blocks, padded, padded_k, workspace_size


class Quantized(NamedTuple):
    """The rows of an operand as integers: residues, scales and the statistics behind them."""

    residues: Array
    """uint8[batch, moduli, rows, padded k]"""
    scale: Array
    """int32[batch, rows]: exponent mu of RNE(x 2^mu), or the sentinel of a row with special values"""
    statistics: Array
    """int64[batch, rows, 5]: emax, lsb, sumsq, nnz, flags"""

    def block(self, axis: Axis, start: Array | int, size: int) -> Quantized:
        """``size`` batch elements, rows or k from ``start``; k in multiples of the statistics' chunk.

        A block of k is as long as its own residues would be: it never leaves the padded rows.
        """
        if axis == "k":
            return self._replace(residues=lax.dynamic_slice_in_dim(self.residues, start, padded_k(size), 3))
        axes = (0, 0, 0) if axis == "b" else (2, 1, 1)
        return Quantized(*(lax.dynamic_slice_in_dim(x, start, size, i) for x, i in zip(self, axes, strict=True)))


class Stages(Protocol):
    """What a platform implements; ``_reference`` defines the results."""

    def stats(self, operand: Operand, moduli: int) -> tuple[Array, Array]: ...
    def quantize(self, operand: Operand, moduli: int) -> tuple[Array, Array, Array]: ...
    def residues(self, operand: Operand, scale: Array, moduli: int) -> Array: ...
    def grouped_mma(self, lhs: Array, rhs: Array, *, summand: bool = False) -> Array:
        """v for ``combine``; as a ``summand``, residues that may be added before."""

    def combine(
        self, v: Array, lhs_scale: Array, rhs_scale: Array, lhs: Operand, rhs: Operand, moduli: int
    ) -> Array: ...


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


@dataclass(frozen=True)
class Rows:
    """An operand, and its quantized form where that exists already (a prepared operand)."""

    operand: Operand
    quantized: Quantized | None = None

    def block(self, axis: Axis, start: Array | int, size: int) -> Rows:
        if size == self.operand.size(axis):
            return self
        quantized = self.quantized and self.quantized.block(axis, start, size)
        return Rows(self.operand.block(axis, start, size), quantized)

    def quantize(self, stages: Stages, moduli: int) -> Rows:
        return self if self.quantized else Rows(self.operand, Quantized(*stages.quantize(self.operand, moduli)))

    def scale(self, stages: Stages, moduli: int) -> Array:
        return self.quantized.scale if self.quantized else stages.stats(self.operand, moduli)[0]

    def residues(self, stages: Stages, scale: Array, moduli: int) -> Array:
        return self.quantized.residues if self.quantized else stages.residues(self.operand, scale, moduli)


def product(stages: Stages, lhs: Rows, rhs: Rows, moduli: int, blocks: Blocks, budget: int) -> Array:
    """C = A B for the rows of A and the columns of B, block by block: float64[batch, m, n].

    Blocks change no bit: scales are those of whole rows, and sums of residues are exact. ``budget``
    bounds what faster ways may take beyond the workspace of the blocks.
    """
    batch, m, k = (lhs.operand.size(axis) for axis in _AXES)
    n = rhs.operand.rows
    if blocks == Blocks(batch, m, n, k):
        unprepared = lhs.quantized is None and rhs.quantized is None
        operands = lhs.operand, rhs.operand
        if unprepared and isinstance(stages, CudaHandlers) and stages.gains_by_strassen(*operands, moduli, budget):
            return stages.multiply_by_strassen(*operands, moduli)
        return _multiply(stages, lhs.quantize(stages, moduli), rhs.quantize(stages, moduli))

    def batch_block(b: Array | int, size: int, c: Array) -> Array:
        a_batch, b_batch = lhs.block("b", b, size), rhs.block("b", b, size)

        def n_block(j: Array | int, size: int, c: Array) -> Array:
            columns = b_batch.block("r", j, size)
            if blocks.k == k:
                columns = columns.quantize(stages, moduli)

            def m_block(i: Array | int, size: int, c: Array) -> Array:
                rows = a_batch.block("r", i, size)
                if blocks.k == k:
                    block = _multiply(stages, rows.quantize(stages, moduli), columns)
                else:
                    block = _multiply_k_blocks(stages, rows, columns, moduli, blocks.k)
                return lax.dynamic_update_slice(c, block, (b, i, j))

            return _over_blocks(m, blocks.m, m_block, c)

        return _over_blocks(n, blocks.n, n_block, c)

    return _over_blocks(batch, blocks.batch, batch_block, jnp.zeros((batch, m, n), jnp.float64))


def _multiply(stages: Stages, lhs: Rows, rhs: Rows) -> Array:
    assert lhs.quantized and rhs.quantized
    v = stages.grouped_mma(lhs.quantized.residues, rhs.quantized.residues)
    moduli = lhs.quantized.residues.shape[1]
    return stages.combine(v, lhs.quantized.scale, rhs.quantized.scale, lhs.operand, rhs.operand, moduli)


def _multiply_k_blocks(stages: Stages, lhs: Rows, rhs: Rows, moduli: int, k_block: int) -> Array:
    """Residues of the blocks' products add up modulo each p."""
    lhs_scale, rhs_scale = lhs.scale(stages, moduli), rhs.scale(stages, moduli)

    def accumulate(start: Array | int, size: int, total: Array) -> Array:
        a, b = lhs.block("k", start, size), rhs.block("k", start, size)
        residues = a.residues(stages, lhs_scale, moduli), b.residues(stages, rhs_scale, moduli)
        v = stages.grouped_mma(*residues, summand=True)
        sums = total.astype(jnp.uint16) + v.astype(jnp.uint16)
        planes = [sums[:, i] % p for i, p in enumerate(_moduli.MODULI[:moduli])]
        return jnp.stack(planes, axis=1).astype(jnp.uint8)

    shape = (lhs.operand.batch, moduli, lhs.operand.rows, padded(rhs.operand.rows))
    v = _over_blocks(lhs.operand.k, k_block, accumulate, jnp.zeros(shape, jnp.uint8))
    return stages.combine(v, lhs_scale, rhs_scale, lhs.operand, rhs.operand, moduli)


def _over_blocks(size: int, block: int, body: Callable[[Array | int, int, Array], Array], carry: Array) -> Array:
    """Fold ``body(start, block size, carry)`` over the blocks of an axis; the last is as short as needed."""
    full, tail = divmod(size, block)
    if full == 1:
        carry = body(0, block, carry)
    elif full:
        carry = lax.fori_loop(0, full, lambda i, c: body(i * block, block, c), carry)
    return body(full * block, tail, carry) if tail else carry


@cache
def by_platform() -> dict[str | None, Stages]:
    """The stages of each lowering platform; None stands for every other platform."""
    return {"cpu": Handlers(lambda operand: 0), "cuda": CudaHandlers(), None: _reference}
