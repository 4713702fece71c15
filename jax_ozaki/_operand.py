"""An operand as the stages see it: a batch of rows along k, whatever its layout in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp
from jax import Array, lax

from . import _field
from ._dimensions import Groups
from ._field import Field

Axis = Literal["b", "r", "k"]


@dataclass(frozen=True)
class Operand:
    """A rank-3 float64 or complex128 array whose axes, in memory order, are ``order``: b(atch), r(ows) and k.

    The last axis with more than one element is k or r, so that rows are read either along k
    (K-contiguous) or across rows (K-strided).
    """

    array: Array
    order: str

    @property
    def field(self) -> Field:
        return _field.of(self.array.dtype)

    def size(self, axis: Axis) -> int:
        return self.array.shape[self.order.index(axis)]

    @property
    def batch(self) -> int:
        return self.size("b")

    @property
    def rows(self) -> int:
        return self.size("r")

    @property
    def k(self) -> int:
        return self.size("k")

    def stride(self, axis: Axis) -> int:
        """Elements between neighbours along ``axis``."""
        return math.prod(self.array.shape[self.order.index(axis) + 1 :])

    def canonical(self) -> Array:
        """The operand as an array of shape (batch, rows, k)."""
        return lax.transpose(self.array, tuple(self.order.index(axis) for axis in "brk"))

    def parts(self) -> Array:
        """The float64s of the elements, shape (batch, rows, k) or, real and imaginary in turn, (batch, rows, 2k)."""
        x = self.canonical()
        if self.field.parts == 1:
            return x
        return jnp.stack([x.real, x.imag], axis=-1).reshape(self.batch, self.rows, 2 * self.k)

    def block(self, axis: Axis, start: Array | int, size: int) -> Operand:
        """``size`` elements along ``axis`` from ``start``, which may be traced."""
        if size == self.size(axis):
            return self
        return Operand(lax.dynamic_slice_in_dim(self.array, start, size, self.order.index(axis)), self.order)


def view(array: Array, groups: Groups) -> Operand:
    """``array`` with its axes grouped into batch, rows (the free axes) and k (the contracted ones).

    Nothing is copied where :func:`memory_order` finds an order; else the array is transposed.
    """
    sizes = {name: math.prod(array.shape[axis] for axis in axes) for name, axes in zip("brk", groups, strict=True)}
    order = memory_order(array.shape, groups)
    if order is None:
        array, order = lax.transpose(array, groups.batch + groups.free + groups.contract), "brk"
    return Operand(lax.reshape(array, tuple(sizes[name] for name in order)), order)


def views(array: Array, groups: tuple[Groups, Groups]) -> tuple[Operand, Operand]:
    """``array`` as both operands of a product, of one array too wherever they lie alike in memory."""
    lhs, rhs = (view(array, of_operand) for of_operand in groups)
    in_place = all(memory_order(array.shape, of_operand) is not None for of_operand in groups)
    if lhs.order == rhs.order and groups[0] == groups[1]:
        return lhs, lhs
    return lhs, replace(rhs, array=lhs.array) if in_place and lhs.array.shape == rhs.array.shape else rhs


def memory_order(shape: tuple[int, ...], groups: Groups) -> str | None:
    """The order of the groups in memory, if each group's axes lie together and in the group's order
    and the last group is not the batch. Axes of size 1 lie anywhere."""
    long = {name: [axis for axis in axes if shape[axis] != 1] for name, axes in zip("brk", groups, strict=True)}
    order = sorted((name for name in "brk" if long[name]), key=lambda name: long[name][0])
    axes = [axis for name in order for axis in long[name]]
    if axes != sorted(axes) or order[-1:] == ["b"]:
        return None
    return "".join([name for name in "brk" if name not in order] + order)
