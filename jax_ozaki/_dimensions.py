"""Dimension numbers of ``dot_general``: axis groups for lowering, axis labels for rewriting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

DimensionNumbers = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
Labels = tuple[int, ...]


def canonical(dimension_numbers: Sequence[Sequence[Sequence[int]]]) -> DimensionNumbers:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    return (
        (tuple(map(int, lhs_contract)), tuple(map(int, rhs_contract))),
        (tuple(map(int, lhs_batch)), tuple(map(int, rhs_batch))),
    )


class Groups(NamedTuple):
    """The axes of one operand by their part in the product."""

    batch: tuple[int, ...]
    free: tuple[int, ...]
    contract: tuple[int, ...]

    def permuted(self, permutation: Sequence[int]) -> Groups:
        """The same axes, named as those of the array that ``permutation`` transposes into this one."""
        return Groups(*(tuple(permutation[axis] for axis in axes) for axes in self))


def groups(dimension_numbers: DimensionNumbers, lhs_ndim: int, rhs_ndim: int) -> tuple[Groups, Groups]:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers

    def of(ndim: int, batch: tuple[int, ...], contract: tuple[int, ...]) -> Groups:
        return Groups(batch, tuple(axis for axis in range(ndim) if axis not in batch + contract), contract)

    return of(lhs_ndim, lhs_batch, lhs_contract), of(rhs_ndim, rhs_batch, rhs_contract)


class Extents(NamedTuple):
    """Sizes of the canonical product (batch, m, k) x (batch, k, n)."""

    batch: int
    m: int
    n: int
    k: int


def extents(lhs_shape: Sequence[int], rhs_shape: Sequence[int], lhs: Groups, rhs: Groups) -> Extents:
    def size(shape: Sequence[int], axes: tuple[int, ...]) -> int:
        return math.prod(shape[axis] for axis in axes)

    return Extents(
        size(lhs_shape, lhs.batch), size(lhs_shape, lhs.free), size(rhs_shape, rhs.free), size(lhs_shape, lhs.contract)
    )


class Labelled(NamedTuple):
    """One label an axis: lhs, rhs and out share that of a batch axis, lhs and rhs that of a contraction."""

    lhs: Labels
    rhs: Labels
    out: Labels


def labelled(dimension_numbers: DimensionNumbers, lhs_ndim: int, rhs_ndim: int) -> Labelled:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    shared = dict(zip(rhs_contract + rhs_batch, lhs_contract + lhs_batch, strict=True))
    lhs = tuple(range(lhs_ndim))
    rhs = tuple(shared.get(axis, lhs_ndim + axis) for axis in range(rhs_ndim))
    return Labelled(lhs, rhs, _result(lhs, rhs, lhs_batch, lhs_contract))


def numbers(lhs: Labels, rhs: Labels, out: Labels) -> tuple[DimensionNumbers, Labels]:
    """Dimension numbers of the product that contracts the shared labels absent from ``out``.

    Also returns the labels of its result in order, which may differ from that of ``out``.
    """
    batch = tuple(x for x in out if x in lhs and x in rhs)
    contract = tuple(x for x in lhs if x in rhs and x not in out)
    dimension_numbers = (
        (tuple(map(lhs.index, contract)), tuple(map(rhs.index, contract))),
        (tuple(map(lhs.index, batch)), tuple(map(rhs.index, batch))),
    )
    return dimension_numbers, _result(lhs, rhs, batch, contract)


def _result(lhs: Labels, rhs: Labels, batch: Labels, contract: Labels) -> Labels:
    used = {*batch, *contract}
    return batch + tuple(x for x in lhs + rhs if x not in used)


def batched(
    dimension_numbers: DimensionNumbers, ndims: Sequence[int], axes: Sequence[int | None]
) -> tuple[DimensionNumbers, int]:
    """Dimension numbers with the mapped ``axes`` of lhs and rhs added: a free axis for one operand, a batch
    axis for both.

    ``ndims`` count the mapped axes. Also returns the result's mapped axis.
    """
    lhs_ndim, rhs_ndim = (ndim - (axis is not None) for ndim, axis in zip(ndims, axes, strict=True))
    labels = labelled(dimension_numbers, lhs_ndim, rhs_ndim)
    mapped = -1

    def insert(labels: Labels, axis: int | None) -> Labels:
        return labels if axis is None else (*labels[:axis], mapped, *labels[axis:])

    lhs, rhs = insert(labels.lhs, axes[0]), insert(labels.rhs, axes[1])
    dimension_numbers, result = numbers(lhs, rhs, (mapped, *labels.out))
    return dimension_numbers, result.index(mapped)
