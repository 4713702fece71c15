"""Quantizations that a loop does not change, moved out of it.

XLA moves custom calls out of loops on the CPU only, so it is done here, in the jaxpr.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ._compat import JaxprEqn, Literal
from ._jaxpr import opened, rebuilt
from ._prepared_product import ozaki_prepared_dot_general_p
from ._primitive import ozaki_dot_general_p
from ._quantize import ozaki_quantize_p

HOISTED = frozenset({ozaki_quantize_p, ozaki_dot_general_p, ozaki_prepared_dot_general_p})
"""What is worth moving out of a loop, with everything that it is computed from."""


def is_invariant(equation: JaxprEqn, invariant: set[Any]) -> bool:
    """Whether ``equation`` computes the same in every iteration."""
    return not equation.effects and all(isinstance(x, Literal) or x in invariant for x in equation.invars)


class Split(NamedTuple):
    """A loop's body without its invariant quantizations."""

    outside: Any
    """The jaxpr of what to compute before the loop, of the constant arguments."""
    body: Any
    """The body, with one more argument for each result of ``outside``."""


def split(body: Any, constant: Sequence[bool], position: int) -> Split | None:
    """Take the invariant quantizations out of ``body``, with its ``constant`` arguments; None if there are none.

    The new arguments are inserted at ``position``. The result is the same object each time, so that what jax
    caches for the body is found again.
    """
    key = (tuple(constant), position)
    known = _splits.setdefault(body, {})
    if key not in known:
        known[key] = _split(body, constant, position)
    return known[key]


_splits: WeakKeyDictionary[Any, dict[Any, Split | None]] = WeakKeyDictionary()


def _split(body: Any, constant: Sequence[bool], position: int) -> Split | None:
    jaxpr = opened(body)
    fixed = [var for var, is_fixed in zip(jaxpr.invars, constant, strict=True) if is_fixed]
    invariant = {*fixed, *jaxpr.constvars}
    candidates = []
    for equation in jaxpr.eqns:
        if is_invariant(equation, invariant):
            invariant.update(equation.outvars)
            candidates.append(equation)
    moved = _needed(candidates)
    if not moved:
        return None
    gone = set(map(id, moved))
    moved, same = _merged(moved)

    def of(atoms: Sequence[Any]) -> list[Any]:
        return [x if isinstance(x, Literal) else same.get(x, x) for x in atoms]

    staying = [e.replace(invars=of(e.invars)) for e in jaxpr.eqns if id(e) not in gone]
    outvars = of(jaxpr.outvars)
    read = {x for x in [*outvars, *(x for e in staying for x in e.invars)] if not isinstance(x, Literal)}
    new = [x for equation in moved for x in equation.outvars if x in read]
    invars = [*jaxpr.invars[:position], *new, *jaxpr.invars[position:]]
    outside = rebuilt(body, moved, invars=fixed, outvars=new)
    return Split(outside, rebuilt(body, staying, invars=invars, outvars=outvars))


def _merged(equations: Sequence[JaxprEqn]) -> tuple[list[JaxprEqn], dict[Any, Any]]:
    """Each computation once, and what stands for the results of its repetitions: a loop holds no operand twice."""
    same: dict[Any, Any] = {}
    first: dict[Any, JaxprEqn] = {}
    kept = []
    for equation in equations:
        invars = [x if isinstance(x, Literal) else same.get(x, x) for x in equation.invars]
        read = tuple(id(x.val) if isinstance(x, Literal) else x for x in invars)
        key = (equation.primitive, read, tuple(sorted(equation.params.items(), key=lambda item: item[0])))
        try:
            earlier = first.setdefault(key, equation)
        except TypeError:  # parameters that are not hashable
            earlier = equation
        if earlier is equation:
            kept.append(equation.replace(invars=invars))
        else:
            same.update(zip(equation.outvars, earlier.outvars, strict=True))
    return kept, same


def _needed(equations: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Those that are hoisted, and those that they depend on."""
    wanted: set[Any] = set()
    needed = []
    for equation in reversed(equations):
        if equation.primitive in HOISTED or any(x in wanted for x in equation.outvars):
            needed.append(equation)
            wanted.update(x for x in equation.invars if not isinstance(x, Literal))
    return needed[::-1]
