"""What takes the place of one ``dot_general``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from . import _complex, _dimensions, _field, _prepare, _primitive
from ._compat import convert_element_type
from ._contract import Contract
from ._dimensions import DimensionNumbers
from ._prepare import Prepared

Value = Any
"""An array, or a Prepared."""


def multiply(
    lhs: Value,
    rhs: Value,
    params: dict[str, Any],
    result: Any,
    contract: Contract,
    workspace_bytes: int,
    observe: Callable[[Value, Value, DimensionNumbers], None] | None = None,
) -> Any:
    """What a dot_general with these ``params`` and the aval ``result`` computes, emulated.

    ``observe`` is shown the product of operands of one dtype that it comes down to.
    """
    lhs, rhs = _wide(lhs, rhs), _wide(rhs, lhs)
    product = partial(_multiply, contract=contract, workspace_bytes=workspace_bytes, observe=observe)
    if by_parts := product_of_parts(lhs.dtype, rhs.dtype, contract):
        product = partial(by_parts, product=product)
    dimension_numbers = _dimensions.canonical(params["dimension_numbers"])
    return convert_element_type(
        product(lhs, rhs, dimension_numbers, params["out_sharding"]), result.dtype, weak_type=result.weak_type
    )


def product_of_parts(lhs: Any, rhs: Any, contract: Contract) -> Callable[..., Array] | None:
    """How a product of these dtypes comes down to a float64 one; None if they have moduli of their own under
    ``contract``."""
    if lhs != rhs:
        return _complex.mixed
    return _complex.embedded if lhs == jnp.complex128 and contract.kind not in _complex.MODULAR else None


def _multiply(
    lhs: Value,
    rhs: Value,
    dimension_numbers: DimensionNumbers,
    out_sharding: Any,
    contract: Contract,
    workspace_bytes: int,
    observe: Callable[[Value, Value, DimensionNumbers], None] | None,
) -> Array:
    """An emulated product of operands of one dtype."""
    if observe:
        observe(lhs, rhs, dimension_numbers)
    if isinstance(lhs, Prepared) or isinstance(rhs, Prepared):
        return _prepare.multiply(
            lhs,
            rhs,
            dimension_numbers=dimension_numbers,
            workspace_bytes=workspace_bytes,
            out_sharding=out_sharding,
        )
    return _primitive.bind(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        contract=contract,
        workspace_bytes=workspace_bytes,
        out_sharding=out_sharding,
    )


def emulates(lhs: Any, rhs: Any, result: Any) -> bool:
    """Whether a product of these dtypes is float64 or complex128: the result is, or both operands are; a float32
    product of a weakly typed operand is not."""
    return result in _field.DTYPES or (lhs in _field.DTYPES and rhs in _field.DTYPES)


def array_of(value: Value) -> Any:
    return value.array if isinstance(value, Prepared) else value


def _wide(value: Value, other: Value) -> Any:
    """An operand as float64 or complex128; the residues of a prepared complex one meet complex operands only."""
    if isinstance(other, Prepared) and other.dtype == jnp.complex128 != value.dtype:
        return lax.convert_element_type(array_of(value), jnp.complex128)
    if value.dtype in _field.DTYPES:
        return value
    return lax.convert_element_type(value, jnp.complex128 if jnp.iscomplexobj(value) else jnp.float64)
