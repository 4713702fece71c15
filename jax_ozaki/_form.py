"""How an operand that a loop does not change is laid out and quantized."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from jax import Array, lax

from ._contract import Contract
from ._dimensions import DimensionNumbers, Groups, groups
from ._prepare import Invariant, Prepared, Side, prepare
from ._prepared_product import fits, quantized


class Form(NamedTuple):
    """The operands of a product, laid out for one of them to be prepared: that one as a stack of matrices, whose
    axes are batch axes of the product, and one contracted axis in the other."""

    side: int
    """Which operand is prepared."""
    permutations: tuple[tuple[int, ...], tuple[int, ...]]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dimension_numbers: DimensionNumbers

    def lay_out(self, x: Array, side: int) -> Array:
        return lax.reshape(lax.transpose(x, self.permutations[side]), self.shapes[side])

    @property
    def result_ndim(self) -> int:
        """Axes of the product of the operands so laid out."""
        _, (batch, _) = self.dimension_numbers
        return sum(map(len, self.shapes)) - 2 - len(batch)

    @property
    def contracted_axis(self) -> int:
        return self.dimension_numbers[0][self.side][0]

    @property
    def free_axis(self) -> int:
        return 2 * len(self.shapes[self.side]) - 3 - self.contracted_axis

    def fits(self, contract: Contract, dtype: Any, workspace_bytes: int, *, transposed: bool = False) -> bool:
        """Whether the residues of the prepared operand may be held, or those for the product's transpose."""
        axis = self.free_axis if transposed else self.contracted_axis
        return fits(self.shapes[self.side], axis, contract, dtype, workspace_bytes)

    def prepare(self, x: Array, contract: Contract) -> Prepared:
        x = self.lay_out(x, self.side)
        side: Side = "lhs" if self.contracted_axis == x.ndim - 1 else "rhs"
        return prepare(x, side, contract)

    def prepare_invariant(self, x: Array, contract: Contract, *, transposed: bool) -> Invariant:
        """The same where no loop at all changes ``x``, quantized for the product's transpose too if told so."""
        p = self.prepare(x, contract)
        found = Invariant(p.array, p.quantized, p.side, p.contract, p.moduli)
        if not transposed:
            return found
        of_transpose = Groups(tuple(range(p.ndim - 2)), (self.contracted_axis,), (self.free_axis,))
        return replace(found, transposed=quantized(p.array, of_transpose, contract))


def form(lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, side: int) -> Form | None:
    """The form for operand ``side`` of a product of these avals; None if that is a vector, nothing is contracted, or
    axes that are sharded would have to become one."""
    avals = lhs, rhs
    both = groups(dimension_numbers, lhs.ndim, rhs.ndim)
    contracted = dimension_numbers[0]
    if not contracted[0] or avals[side].ndim == len(contracted[side]):
        return None
    # The order in which the operand that changes holds the contracted axes, so that it is not copied.
    order = sorted(range(len(contracted[0])), key=contracted[1 - side].__getitem__)
    permutations, shapes, axes = [], [], []
    for i, (aval, of_aval) in enumerate(zip(avals, both, strict=True)):
        ks = tuple(of_aval.contract[j] for j in order)
        parts = _matrices(of_aval, ks) if i == side else _one_contraction(aval.ndim, ks)
        permutation = tuple(axis for part in parts for axis in part)
        shape = tuple(math.prod(aval.shape[axis] for axis in part) for part in parts)
        sharded = any(spec is not None for spec in aval.sharding.spec)
        if sharded and shape != tuple(aval.shape[axis] for axis in permutation):
            return None
        permutations.append(permutation)
        shapes.append(shape)
        axes.append(((parts.index(ks),), tuple(parts.index((axis,)) for axis in of_aval.batch)))
    (lhs_contract, lhs_batch), (rhs_contract, rhs_batch) = axes
    numbers = (lhs_contract, rhs_contract), (lhs_batch, rhs_batch)
    return Form(side, tuple(permutations), tuple(shapes), numbers)  # type: ignore[arg-type]


def _matrices(of: Groups, ks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes of a stack of matrices, each made of those that it lists, in the order in which they lie if they do."""
    batch = [(axis,) for axis in of.batch]
    rows, columns = [*batch, of.free, ks], [*batch, ks, of.free]
    in_place = [axis for part in columns for axis in part] == sorted((*of.batch, *of.free, *ks))
    return columns if in_place else rows


def _one_contraction(ndim: int, ks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes with the contracted ones made one, where they lie if they lie together."""
    kept = [(axis,) for axis in range(ndim) if axis not in ks]
    together = ks == tuple(range(ks[0], ks[0] + len(ks)))
    place = ks[0] if together else len(kept)
    return [*kept[:place], ks, *kept[place:]]
