"""The pipeline of a product, built out of one call a stage.

Stages are separate calls in the HLO: XLA owns every buffer of residues and merges equal
quantizations. A platform without handlers runs the stages of ``_reference`` instead, with those of certified products in ``_ladder_reference``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _ladder_reference
from ._field import REAL, Field
from ._handlers import CudaHandlers, Handlers
from ._moduli import Fewer
from ._operand import Axis, Operand
from ._plan import Blocks, padded, padded_k
from ._rungs import Certified, RungMap, RungModuli, RungNeeds


class Quantized(NamedTuple):
    """The rows of an operand as integers: residues, scales and the statistics behind them."""

    residues: Array
    """uint8[batch, moduli, rows, padded k]; for complex rows [batch, 2 moduli, rows, padded k], those of
    a_r + s a_i before those of a_r - s a_i"""
    scale: Array
    """int32[batch, rows]: exponent mu of RNE(x 2^mu), or the sentinel of a row with special values"""
    statistics: Array
    """int64[batch, rows, 8]: emax, lsb, sumsq, nnz, flags, sumabs, rounded, occupancy"""

    def block(self, axis: Axis, start: Array | int, size: int) -> Quantized:
        """``size`` batch elements, rows or k from ``start``; k in multiples of the statistics' chunk.

        A block of k is as long as its own residues would be: it never leaves the padded rows.
        """
        if axis == "k":
            return self._replace(residues=lax.dynamic_slice_in_dim(self.residues, start, padded_k(size), 3))
        axes = (0, 0, 0) if axis == "b" else (2, 1, 1)
        return Quantized(*(lax.dynamic_slice_in_dim(x, start, size, i) for x, i in zip(self, axes, strict=True)))


class ProductStages(Protocol):
    """The stages of every product; ``_reference`` defines the results."""

    def stats(self, operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array]: ...
    def quantize(self, operand: Operand, moduli: int, fewer: Fewer | None = None) -> tuple[Array, Array, Array]: ...
    def residues(self, operand: Operand, scale: Array, moduli: int) -> Array: ...
    def grouped_mma(self, lhs: Array, rhs: Array, *, field: Field = REAL, summand: bool = False) -> Array:
        """v for ``combine``; as a ``summand``, residues that may be added before."""

    def combine(
        self, v: Array, lhs_scale: Array, rhs_scale: Array, lhs: Operand, rhs: Operand, moduli: int
    ) -> Array: ...


class Stages(ProductStages, Protocol):
    """What a platform implements: also the stages of certified products, see ``_ladder_reference``."""

    def ladder_quantize(
        self, operand: Operand, moduli: int, fewer: Fewer | None, *, step: int
    ) -> tuple[Array, Array, Array, Array]: ...
    def planes(
        self, operand: Operand, table: Array, tiles: Array, *, side: int, planes: int, step: int, rungs: int
    ) -> Array: ...
    def magnitude(self, lhs: Array, rhs: Array, tiles: Array, *, rungs: int) -> Array: ...
    def certify(
        self, sums: Array, lhs: Certified, rhs: Certified, moduli: RungModuli, *, k: int, tau_half: np.float32
    ) -> tuple[RungMap, RungNeeds]: ...
    def certify_fine(
        self,
        sums: Array,
        known: RungMap,
        lhs: Certified,
        rhs: Certified,
        needs: RungNeeds,
        *,
        k: int,
        all_k: bool,
        tau_half: np.float32,
    ) -> RungMap: ...
    def ladder_residues(
        self, operand: Operand, scale: Array, moduli: int, count: Array, tiles: Array, *, side: int, rungs: int
    ) -> Array: ...
    def ladder_mma(self, lhs: Array, rhs: Array, count: Array, tiles: Array, *, rungs: int) -> Array: ...
    def ladder_combine(
        self,
        v: Array,
        lhs_scale: Array,
        rhs_scale: Array,
        lhs: Operand,
        rhs: Operand,
        count: Array,
        rung: Array,
        tiles: Array,
        c: Array | None,
        *,
        rungs: int,
    ) -> Array: ...
    def ladder_sum(
        self,
        lhs: Operand,
        rhs: Operand,
        lhs_table: Array,
        rhs_table: Array,
        rung: Array,
        tiles: Array,
        c: Array,
        *,
        rungs: int,
        exact: bool,
        group: int,
    ) -> Array: ...


@dataclass(frozen=True)
class Rows:
    """An operand, and its quantized form where that exists already (a prepared operand)."""

    operand: Operand
    quantized: Quantized | None = None
    coarse: Array | None = None
    """Coarse magnitudes as ``planes`` makes them, where they were made with the residues."""

    def block(self, axis: Axis, start: Array | int, size: int) -> Rows:
        if size == self.operand.size(axis):
            return self
        quantized = self.quantized and self.quantized.block(axis, start, size)
        return Rows(self.operand.block(axis, start, size), quantized)

    def quantize(self, stages: ProductStages, moduli: int) -> Rows:
        return self if self.quantized else Rows(self.operand, Quantized(*stages.quantize(self.operand, moduli)))

    def scale(self, stages: ProductStages, moduli: int) -> Array:
        return self.quantized.scale if self.quantized else stages.stats(self.operand, moduli)[0]

    def residues(self, stages: ProductStages, scale: Array, moduli: int) -> Array:
        return self.quantized.residues if self.quantized else stages.residues(self.operand, scale, moduli)


def product(stages: ProductStages, lhs: Rows, rhs: Rows, moduli: int, blocks: Blocks, budget: int) -> Array:
    """C = A B for the rows of A and the columns of B, block by block: [batch, m, n] of the operands' dtype.

    Blocks change no bit: scales are those of whole rows, and sums of residues are exact. ``budget``
    bounds what faster ways may take beyond the workspace of the blocks.
    """
    strassen = with_strassen(stages, lhs, rhs, moduli, blocks, budget)
    if symmetric := with_symmetry(stages, lhs, rhs, blocks):
        return symmetric.multiply_symmetric(lhs.operand, rhs.operand, moduli, strassen is not None)
    if strassen:
        return strassen.multiply_by_strassen(lhs.operand, rhs.operand, moduli)
    dtype = lhs.operand.field.dtype
    if blocks.k == lhs.operand.k:
        multiply = partial(_multiply, stages, moduli=moduli)
        return in_blocks(lhs, rhs, blocks, lambda rows: rows.quantize(stages, moduli), multiply, dtype)
    multiply = partial(_multiply_k_blocks, stages, moduli=moduli, k_block=blocks.k)
    return in_blocks(lhs, rhs, blocks, lambda rows: rows, multiply, dtype)


def with_strassen(
    stages: ProductStages, lhs: Rows, rhs: Rows, moduli: int, blocks: Blocks, budget: int
) -> CudaHandlers | None:
    """The stages, where they multiply faster by Strassen-Winograd: large operands, in one block and not prepared."""
    cuda = _for_whole_operands(stages, lhs, rhs, blocks)
    return cuda if cuda and cuda.gains_by_strassen(lhs.operand, rhs.operand, moduli, budget) else None


def with_symmetry(stages: ProductStages, lhs: Rows, rhs: Rows, blocks: Blocks) -> CudaHandlers | None:
    """The stages, where they do half of a product that is symmetric or may be, likewise."""
    cuda = _for_whole_operands(stages, lhs, rhs, blocks)
    return cuda if cuda and cuda.gains_by_symmetry(lhs.operand, rhs.operand) else None


def _for_whole_operands(stages: ProductStages, lhs: Rows, rhs: Rows, blocks: Blocks) -> CudaHandlers | None:
    extents = Blocks(lhs.operand.batch, lhs.operand.rows, rhs.operand.rows, lhs.operand.k)
    if blocks != extents or lhs.quantized or rhs.quantized or not isinstance(stages, CudaHandlers):
        return None
    return stages


def in_blocks(
    lhs: Rows,
    rhs: Rows,
    blocks: Blocks,
    quantize: Callable[[Rows], Rows],
    multiply: Callable[[Rows, Rows], Any],
    dtypes: Any = jnp.float64,
) -> Any:
    """``multiply(quantize(rows), quantize(columns))`` for every block of rows and columns.

    The results are arrays [batch, m, n], one of each dtype in the tree ``dtypes``.
    """
    batch, m, n = lhs.operand.batch, lhs.operand.rows, rhs.operand.rows
    if (blocks.batch, blocks.m, blocks.n) == (batch, m, n):
        return multiply(quantize(lhs), quantize(rhs))

    def batch_block(b: Array | int, size: int, c: Any) -> Any:
        a_batch, b_batch = lhs.block("b", b, size), rhs.block("b", b, size)

        def n_block(j: Array | int, size: int, c: Any) -> Any:
            columns = quantize(b_batch.block("r", j, size))

            def m_block(i: Array | int, size: int, c: Any) -> Any:
                block = multiply(quantize(a_batch.block("r", i, size)), columns)
                return jax.tree.map(lambda whole, part: lax.dynamic_update_slice(whole, part, (b, i, j)), c, block)

            return over_blocks(m, blocks.m, m_block, c)

        return over_blocks(n, blocks.n, n_block, c)

    nothing = jax.tree.map(lambda dtype: jnp.zeros((batch, m, n), dtype), dtypes)
    return over_blocks(batch, blocks.batch, batch_block, nothing)


def _multiply(stages: ProductStages, lhs: Rows, rhs: Rows, moduli: int) -> Array:
    assert lhs.quantized and rhs.quantized
    v = stages.grouped_mma(lhs.quantized.residues, rhs.quantized.residues, field=lhs.operand.field)
    return stages.combine(v, lhs.quantized.scale, rhs.quantized.scale, lhs.operand, rhs.operand, moduli)


def _multiply_k_blocks(stages: ProductStages, lhs: Rows, rhs: Rows, moduli: int, k_block: int) -> Array:
    """Residues of the blocks' products add up modulo each p."""
    lhs_scale, rhs_scale = lhs.scale(stages, moduli), rhs.scale(stages, moduli)
    field = lhs.operand.field
    planes = field.planes(moduli)

    def accumulate(start: Array | int, size: int, total: Array) -> Array:
        a, b = lhs.block("k", start, size), rhs.block("k", start, size)
        residues = a.residues(stages, lhs_scale, moduli), b.residues(stages, rhs_scale, moduli)
        v = stages.grouped_mma(*residues, field=field, summand=True)
        return add_residues(total, v, planes)

    shape = (lhs.operand.batch, len(planes), lhs.operand.rows, padded(rhs.operand.rows))
    v = over_blocks(lhs.operand.k, k_block, accumulate, jnp.zeros(shape, jnp.uint8))
    return stages.combine(v, lhs_scale, rhs_scale, lhs.operand, rhs.operand, moduli)


def add_residues(x: Array, y: Array, planes: Sequence[int]) -> Array:
    """x + y modulo the modulus of each plane: uint8[batch, planes, m, padded n]."""
    sums = x.astype(jnp.uint16) + y.astype(jnp.uint16)
    return jnp.stack([sums[:, i] % p for i, p in enumerate(planes)], axis=1).astype(jnp.uint8)


def over_blocks(size: int, block: int, body: Callable[[Array | int, int, Any], Any], carry: Any) -> Any:
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
    return {"cpu": Handlers(lambda operand: 0), "cuda": CudaHandlers(), None: _ladder_reference}
