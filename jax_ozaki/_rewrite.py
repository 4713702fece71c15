"""Evaluating a jaxpr with its float64 and complex128 products replaced.

``jnp``'s functions are traced as they are and their ``dot_general`` equations evaluated here: promotion,
weak types, shapes and errors are jnp's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from . import _complex, _dimensions, _field, _prepare, _primitive
from ._compat import convert_element_type, dot_general_p, jit_p
from ._contract import Contract
from ._dimensions import DimensionNumbers
from ._prepare import Prepared
from ._report import Report, report

Value = Any


class Rewriter:
    """Evaluates jaxprs with every float64 and complex128 product under ``contract``, and collects reports if asked."""

    def __init__(self, contract: Contract, workspace_bytes: int, return_report: bool = False) -> None:
        self.contract = contract
        self.workspace_bytes = workspace_bytes
        self.return_report = return_report
        self.reports: list[Report] = []

    def evaluate(self, closed: ClosedJaxpr, arguments: Sequence[Value]) -> list[Any]:
        """The results of ``closed``; arguments may be Prepared where only products read them."""
        jaxpr = closed.jaxpr
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Value:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [_array(read(atom)) for atom in jaxpr.outvars]

    def _equation(self, equation: JaxprEqn, operands: list[Value]) -> Sequence[Value]:
        if equation.primitive is dot_general_p:
            return [self._product(equation, *operands)]
        if equation.primitive is jit_p:
            return self.evaluate(equation.params["jaxpr"], operands)
        params = equation.primitive.get_bind_params(equation.params)
        with equation.ctx.manager:
            results = equation.primitive.bind(*map(_array, operands), **params)
        return results if equation.primitive.multiple_results else [results]

    def _product(self, equation: JaxprEqn, lhs: Value, rhs: Value) -> Any:
        params, result = equation.params, cast(Any, equation.outvars[0].aval)
        dimension_numbers = _dimensions.canonical(params["dimension_numbers"])
        contract = self.contract
        if not emulates(lhs.dtype, rhs.dtype, result.dtype) or contract.kind == "native":
            if self.return_report:
                self.reports.append(report(_array(lhs), _array(rhs), dimension_numbers, Contract.native()))
            return dot_general_p.bind(_array(lhs), _array(rhs), **params)
        lhs, rhs = _wide(lhs, rhs), _wide(rhs, lhs)
        arguments = lhs, rhs, dimension_numbers, params["out_sharding"]
        if lhs.dtype != rhs.dtype:
            product = _complex.mixed(*arguments, self._multiply)
        elif lhs.dtype == jnp.complex128 and contract.kind not in _complex.MODULAR:
            product = _complex.embedded(*arguments, self._multiply)
        else:
            product = self._multiply(*arguments)
        return convert_element_type(product, result.dtype, weak_type=result.weak_type)

    def _multiply(self, lhs: Value, rhs: Value, dimension_numbers: DimensionNumbers, out_sharding: Any) -> Array:
        """An emulated product of operands of one dtype, and its report if asked."""
        if isinstance(lhs, Prepared) or isinstance(rhs, Prepared):
            if out_sharding is not None:
                raise ValueError("out_sharding is not supported for prepared operands: constrain the result instead.")
            product = _prepare.multiply(
                lhs, rhs, dimension_numbers=dimension_numbers, workspace_bytes=self.workspace_bytes
            )
        else:
            product = _primitive.bind(
                lhs,
                rhs,
                dimension_numbers=dimension_numbers,
                contract=self.contract,
                workspace_bytes=self.workspace_bytes,
                out_sharding=out_sharding,
            )
        if self.return_report:
            self.reports.append(report(_array(lhs), _array(rhs), dimension_numbers, self.contract))
        return product


def emulates(lhs: Any, rhs: Any, result: Any) -> bool:
    """Whether a product of these dtypes is float64 or complex128: the result is, or both operands are; a float32
    product of a weakly typed operand is not."""
    return result in _field.DTYPES or (lhs in _field.DTYPES and rhs in _field.DTYPES)


def _array(value: Value) -> Any:
    return value.array if isinstance(value, Prepared) else value


def _wide(value: Value, other: Value) -> Any:
    """An operand as float64 or complex128; the residues of a prepared complex one meet complex operands only."""
    if isinstance(other, Prepared) and other.dtype == jnp.complex128 != value.dtype:
        return lax.convert_element_type(_array(value), jnp.complex128)
    if value.dtype in _field.DTYPES:
        return value
    return lax.convert_element_type(value, jnp.complex128 if jnp.iscomplexobj(value) else jnp.float64)
