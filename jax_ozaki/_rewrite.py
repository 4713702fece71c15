"""What takes the place of one ``dot_general``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from . import _dimensions, _prepare, _primitive
from ._compat import convert_element_type
from ._contract import Contract
from ._prepare import Prepared

Value = Any
"""An array, or a Prepared."""


def multiply(
    lhs: Value, rhs: Value, params: dict[str, Any], result: Any, contract: Contract, workspace_bytes: int
) -> Any:
    """What a dot_general with these ``params`` and the aval ``result`` computes, emulated."""
    dimension_numbers = _dimensions.canonical(params["dimension_numbers"])
    lhs, rhs = float64(lhs), float64(rhs)
    if isinstance(lhs, Prepared) or isinstance(rhs, Prepared):
        if params["out_sharding"] is not None:
            raise ValueError("out_sharding is not supported for prepared operands: constrain the result instead.")
        product = _prepare.multiply(lhs, rhs, dimension_numbers=dimension_numbers, workspace_bytes=workspace_bytes)
    else:
        product = _primitive.bind(
            lhs,
            rhs,
            dimension_numbers=dimension_numbers,
            contract=contract,
            workspace_bytes=workspace_bytes,
            out_sharding=params["out_sharding"],
        )
    return convert_element_type(product, result.dtype, weak_type=result.weak_type)


def emulates(lhs: Any, rhs: Any, result: Any) -> bool:
    """Whether a product of these dtypes is float64: the result is, or both operands are; a float32 product
    of a weakly typed operand is not."""
    return result == jnp.float64 or lhs == rhs == jnp.float64


def float64(value: Value) -> Any:
    """The operand that a product of ``value`` as float64 takes."""
    if isinstance(value, Prepared) or value.dtype == jnp.float64:
        return value
    return lax.convert_element_type(value, jnp.float64)
