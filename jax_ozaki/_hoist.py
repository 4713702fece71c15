"""Quantizations that a loop does not change, moved out of it.

XLA moves custom calls out of loops on the CPU only, so it is done here, in the jaxpr.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from jax import Array, lax

from ._compat import JaxprEqn, Literal
from ._contract import Contract
from ._dimensions import DimensionNumbers, groups
from ._jaxpr import opened, rebuilt
from ._plan import padded_k
from ._prepare import Prepared, ozaki_prepared_dot_general_p, prepare
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


class Form(NamedTuple):
    """How the operands of a product are laid out for one of them to be prepared: one contracted axis, and
    that among its last two."""

    side: int
    """Which operand is prepared."""
    permutations: tuple[tuple[int, ...], tuple[int, ...]]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dimension_numbers: DimensionNumbers

    def lay_out(self, x: Array, side: int) -> Array:
        return lax.reshape(lax.transpose(x, self.permutations[side]), self.shapes[side])

    def residue_bytes(self, contract: Contract) -> int:
        """Bytes of residues of the prepared operand."""
        shape, (axis,) = self.shapes[self.side], self.dimension_numbers[0][self.side]
        return contract.modulus_count(shape[axis]) * math.prod(shape) // max(shape[axis], 1) * padded_k(shape[axis])

    def prepare(self, x: Array, contract: Contract) -> Prepared:
        x = self.lay_out(x, self.side)
        (axis,) = self.dimension_numbers[0][self.side]
        return prepare(x, "lhs" if axis == x.ndim - 1 else "rhs", contract)


def form(lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, side: int) -> Form | None:
    """The form for operand ``side`` of a product of these avals; None if it is a vector, or nothing is contracted."""
    avals = lhs, rhs
    both = groups(dimension_numbers, lhs.ndim, rhs.ndim)
    contracted = dimension_numbers[0]
    if not contracted[0] or avals[side].ndim == len(contracted[side]):
        return None
    # The order in which the operand that changes holds the contracted axes, so that it is not copied.
    order = sorted(range(len(contracted[0])), key=contracted[1 - side].__getitem__)
    permutations, shapes, axes = [], [], []
    for i, (aval, of_aval) in enumerate(zip(avals, both, strict=True)):
        ks = tuple(of_aval.contract[j] for j in order)
        kept = [axis for axis in range(aval.ndim) if axis not in ks]
        # Contracted axes become one, where they lie if they lie together; a prepared one among the last two.
        together = ks == tuple(range(ks[0], ks[0] + len(ks)))
        place = ks[0] if together else len(kept)
        if i == side and place < len(kept) - 1:
            place = len(kept)
        permutation = (*kept[:place], *ks, *kept[place:])
        size = math.prod(aval.shape[k] for k in ks)
        shapes.append((*(aval.shape[x] for x in kept[:place]), size, *(aval.shape[x] for x in kept[place:])))
        new_position = {x: j + (j >= place) for j, x in enumerate(kept)}
        permutations.append(permutation)
        axes.append(((place,), tuple(new_position[x] for x in of_aval.batch)))
    (lhs_contract, lhs_batch), (rhs_contract, rhs_batch) = axes
    numbers = (lhs_contract, rhs_contract), (lhs_batch, rhs_batch)
    return Form(side, tuple(permutations), tuple(shapes), numbers)  # type: ignore[arg-type]
