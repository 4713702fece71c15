"""Operands quantized once and multiplied many times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import _arguments, _field, _prepared_product
from ._contract import Contract, resolve
from ._dimensions import DimensionNumbers, Groups
from ._prepared_product import Factor, quantized
from ._stages import Quantized

Side = Literal["lhs", "rhs"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("array", "quantized"),
    meta_fields=("side", "contract", "moduli"),
)
@dataclass(frozen=True, eq=False)
class Prepared:
    """A matrix, or a stack of them, with its quantized form; made by :func:`prepare`.

    The array itself is the differentiable leaf. Every leaf has the stack's axes first, so a Prepared can
    be mapped by ``vmap``, carried by ``scan`` and passed through ``jit``. Two are equal if they are the same.

    Differentiate with respect to the array, preparing it inside; ``jax.grad`` over a Prepared argument needs
    ``allow_int=True``. A leaf must not be changed without the others: they are one matrix.
    """

    array: Array
    """float64 or complex128, [*stack, m, k] for side "lhs", [*stack, k, n] for side "rhs"."""
    quantized: Quantized
    side: Side
    contract: Contract
    moduli: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def contracted_axis(self) -> int:
        return self.ndim - (1 if self.side == "lhs" else 2)

    def __repr__(self) -> str:
        # jax makes instances whose leaves are no arrays.
        array = f"{self.dtype}{list(self.shape)}" if hasattr(self.array, "shape") else self.array
        return f"{type(self).__name__}({array}, side={self.side!r}, contract={self.contract}, moduli={self.moduli})"

    def __matmul__(self, other: Any) -> Array:
        from ._numpy import matmul

        return matmul(self, other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Array:
        from ._numpy import matmul

        return matmul(other, self) if _is_operand(other) else NotImplemented

    __array_ufunc__ = None
    """NumPy's operators leave a Prepared alone."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "a prepared operand is no array: multiply it by @, jax_ozaki.matmul or dot, or take its .array."
        )


def _is_operand(x: Any) -> bool:
    """Whether ``@`` takes x; what it does not take may know what to do with a Prepared."""
    return isinstance(x, Prepared | Array | np.ndarray | np.generic | int | float | complex) or hasattr(
        x, "__jax_array__"
    )


def prepare(a: Any, side: Side = "lhs", contract: Contract | None = None) -> Prepared:
    """Quantize ``a`` once, to multiply it many times with ``@``, ``matmul`` or ``dot``.

    Products of the result have the bits of the unprepared product, and gradients with respect to ``a``
    are those of ``a``. A float64 operand that meets a prepared complex128 one is widened first: unprepared, the two
    would be one real product, with other moduli.

    Arguments:
        a: float64 or complex128 of shape (..., m, k) for side "lhs", (..., k, n) for side "rhs".
        side: the side of the product that it will stand on.
        contract: the contract of its products; the default contract if None.

    Raises:
        TypeError: ``a`` is neither a float64 nor a complex128 array.
        ValueError: ``a`` has fewer than two axes, ``side`` is neither "lhs" nor "rhs", or the contract is
            native, cannot be kept for this k, or is certified and ``a`` complex.
    """
    if side not in ("lhs", "rhs"):
        raise ValueError(f'side={side!r}: "lhs" or "rhs" is needed.')
    a = _arguments.array("a", a)
    if a.dtype not in _field.DTYPES:
        raise TypeError(f"a has dtype {a.dtype}: only float64 and complex128 are prepared.{_arguments.narrowed()}")
    if a.ndim < 2:
        raise ValueError(f"a has shape {a.shape}: at least two axes are needed.")
    contract = resolve(contract)
    if contract.kind == "native":
        raise ValueError("contract=native: a native product has nothing to prepare.")
    if not preparable(contract, a.dtype):
        raise ValueError(
            f"contract={contract}: complex128 is prepared under moduli, mantissa or normwise contracts, e.g. "
            "contract=Contract.normwise(2)."
        )
    k_axis, row_axis = (a.ndim - 1, a.ndim - 2) if side == "lhs" else (a.ndim - 2, a.ndim - 1)
    groups = Groups(tuple(range(a.ndim - 2)), (row_axis,), (k_axis,))
    return Prepared(a, quantized(a, groups, contract), side, contract, contract.modulus_count(a.shape[k_axis], a.dtype))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("array", "quantized", "transposed"),
    meta_fields=("side", "contract", "moduli"),
)
@dataclass(frozen=True, eq=False, repr=False)
class Invariant(Prepared):
    """A Prepared that no loop around its products changes: their derivatives quantize it for the loop backwards too."""

    transposed: Quantized | None = None
    """The rows along the other one of its last two axes, where it is known already that derivatives are taken."""


def preparable(contract: Contract, dtype: Any) -> bool:
    """Whether a product under ``contract`` can use operands of ``dtype`` quantized before it is known.

    A certified product of complex operands is a real one of other operands.
    """
    return contract.kind != "native" and not (contract.certified and dtype == jnp.complex128)


def multiply(
    lhs: Array | Prepared,
    rhs: Array | Prepared,
    *,
    dimension_numbers: DimensionNumbers,
    workspace_bytes: int,
    out_sharding: Any = None,
) -> Array:
    """The product of two operands of one dtype of which at least one is prepared."""
    prepared = [x if isinstance(x, Prepared) else None for x in (lhs, rhs)]
    (contract, _), *others = {(x.contract, x.moduli) for x in prepared if x}
    if others:
        raise ValueError(f"lhs was prepared for {prepared[0].contract}, rhs for {prepared[1].contract}.")  # type: ignore[union-attr]
    # Rows of either operand are quantized alike, so either side will do; the contracted axis is given.
    for x, axes in zip(prepared, dimension_numbers[0], strict=True):
        if x and axes != (x.contracted_axis,):
            raise ValueError(
                f"an operand of shape {x.shape} prepared as {x.side!r} can be contracted over its axis "
                f"{x.contracted_axis} only; here it is contracted over {axes}."
            )
    return _prepared_product.bind(
        _factor(lhs),
        _factor(rhs),
        dimension_numbers=dimension_numbers,
        contract=contract,
        workspace_bytes=workspace_bytes,
        out_sharding=out_sharding,
    )


def _factor(x: Array | Prepared) -> Factor:
    if not isinstance(x, Prepared):
        return Factor(x)
    if not isinstance(x, Invariant):
        return Factor(x.array, (x.quantized,))
    return Factor(x.array, (x.quantized, x.transposed) if x.transposed else (x.quantized,), invariant=True)
