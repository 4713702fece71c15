"""Evaluating a jaxpr with its float64 and complex128 products replaced.

``jnp``'s functions are traced as they are and their ``dot_general`` equations evaluated here: promotion,
weak types, shapes and errors are jnp's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import jax
from jax.extend.core import jaxpr_as_fun

from . import _dimensions, _switch
from ._compat import ClosedJaxpr, JaxprEqn, Literal, dot_general_p, jit_p, pvary_p
from ._contract import Contract
from ._jaxpr import alone
from ._report import Report, report
from ._rewrite import Value, array_of, emulates, multiply
from ._settings import Settings
from ._substitute import Substitution


class Rewriter:
    """Evaluates jaxprs with every float64 and complex128 product under ``contract``, and collects reports if asked."""

    def __init__(self, contract: Contract, workspace_bytes: int, return_report: bool = False) -> None:
        self.contract = contract
        self.workspace_bytes = workspace_bytes
        self.return_report = return_report
        self.substitution = Substitution(Settings(contract, workspace_bytes, 0))
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
        return [array_of(read(atom)) for atom in jaxpr.outvars]

    def _equation(self, equation: JaxprEqn, operands: list[Value]) -> Sequence[Value]:
        if equation.primitive is jit_p:
            return self.evaluate(equation.params["jaxpr"], operands)
        # Under the mesh and the flags that the equation was traced with.
        with equation.ctx.manager:
            if equation.primitive is dot_general_p:
                return [self._product(equation, *operands)]
            if equation.primitive is pvary_p:
                # What varies over a manual axis varies with all its leaves.
                return [jax.tree.map(partial(pvary_p.bind, **equation.params), x) for x in operands]
            if self.substitution.enters(equation):
                return jaxpr_as_fun(self.substitution.rewrite(alone(equation)))(*map(array_of, operands))
            params = equation.primitive.get_bind_params(equation.params)
            results = equation.primitive.bind(*map(array_of, operands), **params)
        return results if equation.primitive.multiple_results else [results]

    def _product(self, equation: JaxprEqn, lhs: Value, rhs: Value) -> Any:
        params, result = equation.params, cast(Any, equation.outvars[0].aval)
        dimension_numbers = _dimensions.canonical(params["dimension_numbers"])
        contract = self.contract
        if not emulates(lhs.dtype, rhs.dtype, result.dtype) or contract.kind == "native":
            if self.return_report:
                self.reports.append(report(array_of(lhs), array_of(rhs), dimension_numbers, Contract.native()))
            with _switch.native() if contract.kind == "native" else nullcontext():
                return dot_general_p.bind(array_of(lhs), array_of(rhs), **params)

        def observe(lhs: Value, rhs: Value, dimension_numbers: Any) -> None:
            self.reports.append(report(array_of(lhs), array_of(rhs), dimension_numbers, contract))

        observer = observe if self.return_report else None
        return multiply(lhs, rhs, params, result, contract, self.workspace_bytes, observer)
