"""Complex products as real ones: of a real and a complex operand, and for contracts without complex moduli.

Products of two complex128 arrays under the contracts of ``MODULAR`` have moduli of their own
(``_field.COMPLEX``). Here the parts of complex numbers become axes of float64 arrays.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from . import _dimensions
from ._dimensions import DimensionNumbers, Groups, Labels

MODULAR = ("moduli", "mantissa", "normwise")
"""Kinds of contracts that complex products keep by moduli of their own."""

_PART, _TERM = -2, -3
"""Labels of new axes: the parts of a complex number, and the two terms that make up a part of a product."""


class Product(Protocol):
    """A float64 product with lax.dot_general's dimension numbers; the operands may be Prepared."""

    def __call__(self, lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, out_sharding: Any) -> Array: ...


def mixed(lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, out_sharding: Any, product: Product) -> Array:
    """A float64 with a complex128 operand: one real product with the parts of the complex one side by side.

    The real operand is never widened, so nothing is multiplied by the zero imaginary parts that jnp gives it:
    an Inf in it makes no NaN out of them.
    """
    labels = _dimensions.labelled(dimension_numbers, lhs.ndim, rhs.ndim)
    groups = _dimensions.groups(dimension_numbers, lhs.ndim, rhs.ndim)
    operands, of_operand = [lhs, rhs], [labels.lhs, labels.rhs]
    side = 0 if jnp.iscomplexobj(lhs) else 1
    axis = _before_free(groups[side])
    operands[side] = jnp.stack([operands[side].real, operands[side].imag], axis)
    of_operand[side] = _insert(of_operand[side], axis, _PART)
    return _joined(operands, of_operand, labels.out, out_sharding, product)


def embedded(lhs: Array, rhs: Array, dimension_numbers: DimensionNumbers, out_sharding: Any, product: Product) -> Array:
    """Two complex128 arrays as one real product of length 2k: rows [a_r, a_i], every column b both as
    [b_r, -b_i] and as [b_i, b_r]."""
    labels = _dimensions.labelled(dimension_numbers, lhs.ndim, rhs.ndim)
    of_lhs, of_rhs = _dimensions.groups(dimension_numbers, lhs.ndim, rhs.ndim)
    # The terms of an element are neighbours along the contraction.
    lhs_term, rhs_term = (max(by.contract, default=-1) + 1 for by in (of_lhs, of_rhs))
    rows = jnp.stack([lhs.real, lhs.imag], lhs_term)
    columns = jnp.stack([jnp.stack(pair, rhs_term) for pair in ((rhs.real, -rhs.imag), (rhs.imag, rhs.real))], -1)
    of_operand = [_insert(labels.lhs, lhs_term, _TERM), (*_insert(labels.rhs, rhs_term, _TERM), _PART)]
    return _joined([rows, columns], of_operand, labels.out, out_sharding, product)


def _joined(operands: list[Any], labels: list[Labels], out: Labels, out_sharding: Any, product: Product) -> Array:
    """The complex result of a real product whose axis ``_PART`` holds the parts."""
    dimension_numbers, result = _dimensions.numbers(labels[0], labels[1], (*out, _PART))
    axis = result.index(_PART)
    if out_sharding is not None:
        spec = tuple(out_sharding.spec) + (None,) * (len(out) - len(out_sharding.spec))
        out_sharding = out_sharding.update(spec=PartitionSpec(*spec[:axis], None, *spec[axis:]))
    parts = product(operands[0], operands[1], dimension_numbers, out_sharding)
    return lax.complex(*(lax.index_in_dim(parts, i, axis, keepdims=False) for i in range(2)))


def _before_free(by: Groups) -> int:
    """Where an axis becomes the first free one, next to the others, or the last batch axis's neighbour."""
    return min(by.free or by.contract, default=len(by.batch))


def _insert(labels: Labels, axis: int, label: int) -> Labels:
    return (*labels[:axis], label, *labels[axis:])
