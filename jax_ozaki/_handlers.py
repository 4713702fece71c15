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

from . import _ffi, _moduli, _rungs
from ._compat import initialized_platforms
from ._field import REAL, Field
from ._ladder_handlers import LadderHandlers, layout, of_fewer, residue_type, row_types, strides
from ._moduli import Fewer
from ._operand import Operand
from ._plan import padded, workspace_size


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

    def stats(self, operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array]:
        types = (*row_types(operand), self._scratch(operand))
        stage = operand.field.prefix + "stats"
        attributes = {"moduli": moduli, **of_fewer(moduli, fewer), **layout(operand)}
        scale, table, _ = self._call(stage, types, operand.array, **attributes)
        return scale, table

    def quantize(self, operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array, Array]:
        types = (residue_type(operand, moduli), *row_types(operand), self._scratch(operand))
        stage = operand.field.prefix + "quantize"
        attributes = {**of_fewer(moduli, fewer), **layout(operand)}
        residues, scale, table, _ = self._call(stage, types, operand.array, **attributes)
        return residues, scale, table

    def residues(self, operand: Operand, scale: Array, moduli: int) -> Array:
        stage = operand.field.prefix + "residues"
        return self._call(stage, residue_type(operand, moduli), operand.array, scale, **layout(operand))

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
    ) -> Array:
        result = _type((lhs.batch, lhs.rows, rhs.rows), lhs.field.dtype)
        operands = (v, lhs_scale, rhs_scale, lhs.array, rhs.array)
        return self._call(lhs.field.prefix + "combine", result, *operands, moduli=moduli, **strides(lhs, rhs))

    def _scratch(self, operand: Operand) -> jax.ShapeDtypeStruct:
        return _type((self._scratch_bytes(operand),), jnp.uint8)


class CudaHandlers(Handlers):
    """The handlers of NVIDIA GPUs, whose matrix kernels can also write partial sums of the CRT."""

    def __init__(self, epilogue: str | None = None) -> None:
        super().__init__(_partial_statistics_bytes)
        epilogue = epilogue or _choice("JAX_OZAKI_CUDA_EPILOGUE", ("residues", "partial_crt"))
        self._partial_crt = epilogue == "partial_crt"
        self._strassen = _choice("JAX_OZAKI_CUDA_STRASSEN", ("auto", "never", "always"))
        self._symmetry = _choice("JAX_OZAKI_CUDA_SYMMETRY", ("auto", "never", "always"))

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

    def combine(self, v: Array, lhs_scale: Array, rhs_scale: Array, lhs: Operand, rhs: Operand, moduli: int) -> Array:
        # XLA runs the four calls of a product one by one, for which the host takes longer than the GPU takes for a small
        # product. From five commands on it records them as a CUDA graph. The fifth changes no scale.
        if lhs.field.parts * moduli * lhs.batch * lhs.rows * rhs.rows * lhs.k <= _SHORT_PRODUCT:
            rhs_scale = lax.min(rhs_scale, np.int32(_ABOVE_SCALES))
        return super().combine(v, lhs_scale, rhs_scale, lhs, rhs, moduli)

    def _flag_scratch(self, batch: int, m: int, n: int) -> jax.ShapeDtypeStruct:
        """The number of flagged tiles and of each its place and its part of k, four int32, for the smallest tiles there
        are."""
        return _type((16 * (1 + batch * -(-m // _SMALLEST_TILE) * -(-n // _SMALLEST_TILE)),), jnp.uint8)

    def _certify_scratch(self, batch: int, m: int, n: int) -> jax.ShapeDtypeStruct:
        """24 bytes a row and column, and 24 for every 128 of them."""
        tiles = batch * (_rungs.tiles(m) + _rungs.tiles(n))
        return _type((tiles * 24 * (_rungs.TILE + 1),), jnp.uint8)

    def gains_by_symmetry(self, lhs: Operand, rhs: Operand) -> bool:
        """Whether half of the product's tiles, if it is symmetric, are worth what it takes to know that.

        It is if it is x x^T, and x x may be: both operands are one array then.
        """
        # Measured on an H200: a third faster at 1536, where an x that is not symmetric loses 2%.
        smallest = {"auto": 1536, "never": math.inf, "always": 1}[self._symmetry]
        if lhs.array is not rhs.array or self._partial_crt or lhs.field is not REAL or lhs.rows < smallest:
            return False
        return lhs.order == rhs.order or (_transposed(lhs.order) == rhs.order and lhs.rows == lhs.k)

    def multiply_symmetric(self, lhs: Operand, rhs: Operand, moduli: int, strassen: bool) -> Array:
        """The product from its tiles on one side of the diagonal where it is symmetric: the same bits.

        Whether x is symmetric, so that x x is, the device finds out; if not, all tiles are computed, or it multiplies
        by Strassen-Winograd if that is faster.
        """
        tiles = self.tiles_of_itself(lhs, rhs)
        if lhs.order == rhs.order:
            residues, scale, _ = self.quantize(lhs, moduli)
            v = self._symmetric_mma(residues, residues, tiles)
            return self.symmetric_combine(v, scale, scale, lhs, rhs, tiles, moduli)

        rhs_scale, _ = self.stats(rhs, moduli)
        count = jnp.full(1, moduli, jnp.int32)
        if not strassen:
            lhs_residues, lhs_scale, _ = self.quantize(lhs, moduli)
            rhs_residues = self.ladder_residues(rhs, rhs_scale, moduli, count, tiles, side=1, rungs=_FROM_OWN_COLUMNS)
            v = self._symmetric_mma(lhs_residues, rhs_residues, tiles)
            return self.symmetric_combine(v, lhs_scale, rhs_scale, lhs, rhs, tiles, moduli)

        lhs_scale, _ = self.stats(lhs, moduli)
        symmetric = self.found_symmetric(tiles)
        by_strassen = jnp.where(symmetric, 0, count)
        c = self.first_rung_by_strassen(lhs, rhs, lhs_scale, rhs_scale, moduli, by_strassen, tiles)
        c, tiles = lax.optimization_barrier((c, jnp.where(symmetric, tiles, 0).astype(jnp.uint32)))
        residues = self.ladder_residues(lhs, lhs_scale, moduli, count, tiles, side=0, rungs=_COMPUTED)
        v = self._symmetric_mma(residues, residues, tiles)
        return self.symmetric_combine(v, lhs_scale, rhs_scale, lhs, rhs, tiles, moduli, c)

    def tiles_of_itself(self, lhs: Operand, rhs: Operand) -> Array:
        """What every tile of x x^T or x x needs, uint32[batch, tiles, tiles]; one that is 0 mirrors another."""
        shape = (lhs.batch, *[_rungs.tiles(lhs.rows)] * 2)
        if lhs.order != rhs.order:
            return self._call("symmetry", _type(shape, jnp.uint32), lhs.array, **layout(lhs))
        row, column = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (1, 2))
        return jnp.where(row <= column, _COMPUTED, 0).astype(jnp.uint32)

    def found_symmetric(self, tiles: Array) -> Array:
        """Whether the tiles of x x are those of a symmetric product: bool[1]."""
        return (tiles[0, -1:, 0] & _FROM_OWN_COLUMNS) == 0

    def mirror(self, c: Array, tiles: Array) -> Array:
        """c with the tiles that are 0 in ``tiles`` as mirror images of others."""
        return self._call("symmetric_mirror", _type(c.shape, c.dtype), c, tiles, aliases={0: 0})

    def _symmetric_mma(self, lhs: Array, rhs: Array, tiles: Array) -> Array:
        """As ``grouped_mma``, the computed tiles alone; of a symmetric product rhs is not read."""
        batch, moduli, m, _ = lhs.shape
        results = _type((batch, moduli, m, padded(m)), jnp.uint8), self._flag_scratch(batch, m, m)
        return self._call("symmetric_mma", results, lhs, rhs, tiles)[0]

    def symmetric_combine(
        self,
        v: Array,
        lhs_scale: Array,
        rhs_scale: Array,
        lhs: Operand,
        rhs: Operand,
        tiles: Array,
        moduli: int,
        *c: Array,
    ) -> Array:
        """As ``combine``, from the computed tiles of v; c keeps what is neither computed nor mirrored."""
        result = _type((lhs.batch, lhs.rows, rhs.rows), lhs.field.dtype)
        operands = (v, lhs_scale, rhs_scale, lhs.array, rhs.array, tiles, *c)
        aliases = {len(operands) - 1: 0} if c else None
        return self._call("symmetric_combine", result, *operands, aliases=aliases, moduli=moduli, **strides(lhs, rhs))

    def gains_by_strassen(self, lhs: Operand, rhs: Operand, moduli: int, budget: int) -> bool:
        """Whether one level of Strassen-Winograd is faster, and its quarters fit the workspace."""
        extents = lhs.rows, rhs.rows, lhs.k
        planes = lhs.field.parts * moduli
        workspace = workspace_size(planes, _STRASSEN_PRODUCTS * lhs.batch, *map(_half, extents))
        # Measured on an H200 with 9 to 17 moduli: level at 6144, and 8% slower at 4096.
        smallest = {"auto": 7168, "never": math.inf, "always": 2}
        return workspace <= budget and min(extents) >= smallest[self._strassen]

    def multiply_by_strassen(self, lhs: Operand, rhs: Operand, moduli: int) -> Array:
        """The product by seven products of quarters instead of eight, exact modulo every p: the same bits."""
        (lhs_scale, _), (rhs_scale, _) = self.stats(lhs, moduli), self.stats(rhs, moduli)
        scales = lhs_scale, rhs_scale
        residues = self._strassen_residues(lhs, rhs, *scales, moduli)
        v = self.grouped_mma(*residues, field=lhs.field, summand=True)
        return self._strassen_combine(v, *scales, lhs, rhs, moduli)

    def first_rung_by_strassen(
        self, lhs: Operand, rhs: Operand, lhs_scale: Array, rhs_scale: Array, moduli: int, count: Array, tiles: Array
    ) -> Array:
        """C where the first rungs of a ladder give it, from the first ``count`` moduli; anything elsewhere."""
        residues = self._strassen_residues(lhs, rhs, lhs_scale, rhs_scale, moduli, count)
        # A product is part of outputs of several quarters.
        tiles = _of_quarters(_of_quarters(tiles, 1, lhs.rows), 2, rhs.rows)
        tiles = jnp.repeat(tiles, _STRASSEN_PRODUCTS, axis=0)
        v = self.ladder_mma(*residues, count, tiles, rungs=_rungs.FIRST)
        return self._strassen_combine(v, lhs_scale, rhs_scale, lhs, rhs, moduli, count)

    def _strassen_residues(
        self, lhs: Operand, rhs: Operand, lhs_scale: Array, rhs_scale: Array, moduli: int, *count: Array
    ) -> tuple[Array, Array]:
        """Those of the sums of quarters, the seven products as a batch."""

        def residues(side: int, operand: Operand, scale: Array) -> Array:
            batch, planes = operand.batch, operand.field.parts * moduli
            shape = (batch, _STRASSEN_PRODUCTS, planes, _half(operand.rows), _strassen_depth(operand.k))
            stage, operands = operand.field.prefix + "strassen_quantize", (operand.array, scale, *count)
            of_sums = self._call(stage, _type(shape, jnp.uint8), *operands, side=side, **layout(operand))
            return lax.reshape(of_sums, (batch * _STRASSEN_PRODUCTS, *shape[2:]))

        return residues(0, lhs, lhs_scale), residues(1, rhs, rhs_scale)

    def _strassen_combine(
        self, v: Array, lhs_scale: Array, rhs_scale: Array, lhs: Operand, rhs: Operand, moduli: int, *count: Array
    ) -> Array:
        v = lax.reshape(v, (lhs.batch, _STRASSEN_PRODUCTS, *v.shape[1:]))
        result = _type((lhs.batch, lhs.rows, rhs.rows), lhs.field.dtype)
        stage, operands = lhs.field.prefix + "strassen_combine", (v, lhs_scale, rhs_scale, lhs.array, rhs.array, *count)
        return self._call(stage, result, *operands, moduli=moduli, **strides(lhs, rhs))


_COMPUTED, _FROM_OWN_COLUMNS = 1, 2
"""What a tile of a square needs: cuda/symmetry.h. One that needs its own columns is of a first rung, too: Strassen's."""
assert _FROM_OWN_COLUMNS & _rungs.FIRST

_SHORT_PRODUCT = 2**35
"""INT8 multiplications that an H200 makes in the time that a host takes for the calls of a product, some 100 us."""
_ABOVE_SCALES = 2**30

_SMALLEST_TILE = 32
_STRASSEN_PRODUCTS = 7


def _transposed(order: str) -> str:
    """The order of an operand whose rows are the columns of another one."""
    return order.translate(str.maketrans("rk", "kr"))


def _half(size: int) -> int:
    return -(-size // 2)


def _strassen_depth(k: int) -> int:
    """Bytes of a row of quarters: half of k in whole cache lines."""
    return -(-_half(k) // 128) * 128


def _of_quarters(tiles: Array, axis: int, extent: int) -> Array:
    """The rungs in every tile of a quarter, those of both halves of an axis of ``extent`` outputs together."""
    half = _half(extent)
    count = _rungs.tiles(half)
    # The lower half starts in tile `first`, most often inside of it.
    first, starts_inside = half // _rungs.TILE, half % _rungs.TILE > 0
    beyond = lax.full_like(lax.slice_in_dim(tiles, 0, 1, axis=axis), 0)
    tiles = lax.concatenate([tiles, *[beyond] * 2], axis)
    parts = [lax.slice_in_dim(tiles, at, at + count, axis=axis) for at in (0, first, first + starts_inside)]
    return parts[0] | parts[1] | parts[2]


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
