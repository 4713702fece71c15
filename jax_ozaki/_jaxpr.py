"""Jaxprs, open or closed, as one thing: jax is about to make them one type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._compat import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, trace

Atom = Any
"""A variable or a literal."""


def opened(jaxpr: Any) -> Any:
    """The equations' owner: the jaxpr itself, or the one that a ClosedJaxpr holds."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def rebuilt(jaxpr: Any, equations: Sequence[JaxprEqn], **changes: Any) -> Any:
    """``jaxpr`` with other equations, and other variables where ``changes`` says so."""
    inner = opened(jaxpr)
    new = inner.replace(eqns=list(equations), **changes)
    return new if inner is jaxpr else jaxpr.replace(jaxpr=new)


def alone(equation: JaxprEqn) -> Any:
    """The jaxpr of one equation."""
    invars: list[Any] = [Var(x.aval) for x in equation.invars]
    outvars = [Var(x.aval) for x in equation.outvars]
    inside = equation.replace(invars=invars, outvars=outvars)
    return rebuilt(trace(lambda: [], []), [inside], invars=invars, outvars=outvars, effects=equation.effects)


def inline(closed: Any, operands: Sequence[Atom], site: JaxprEqn | None = None) -> tuple[list[JaxprEqn], list[Atom]]:
    """The equations of ``closed`` applied to ``operands``, and its results.

    What was traced to stand for ``site`` takes its place in the program's sources.
    """
    jaxpr = opened(closed)
    atoms: dict[Any, Atom] = dict(zip(jaxpr.invars, operands, strict=True))
    atoms.update(
        {x: Literal(value, x.aval) for x, value in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True)}
    )

    def read(atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else atoms[atom]

    source = site.source_info if site else None
    equations = []
    for equation in jaxpr.eqns:
        results = [Var(x.aval) for x in equation.outvars]
        operands = [read(x) for x in equation.invars]
        equations.append(equation.replace(invars=operands, outvars=results, source_info=source))
        atoms.update(zip(equation.outvars, results, strict=True))
    return equations, [read(x) for x in jaxpr.outvars]


def map_inner(value: Any, fn: Callable[[Any], Any]) -> Any:
    """A parameter with ``fn`` applied to every jaxpr in it; the same object if that changes none."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return fn(value)
    if isinstance(value, tuple | list):
        items = [map_inner(x, fn) for x in value]
        if all(x is y for x, y in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_inner(x, fn) for key, x in value.items()}
    return value


def inner_jaxprs(value: Any) -> list[Any]:
    """Every jaxpr in a parameter."""
    found: list[Any] = []
    map_inner(value, lambda jaxpr: found.append(jaxpr) or jaxpr)  # type: ignore[func-returns-value]
    return found
