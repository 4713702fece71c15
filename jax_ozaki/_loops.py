"""Loops with their bodies rewritten, and what they do not change computed before them.

Whatever stands between a loop and a product (a jitted function, a block) is opened, or split in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from ._compat import JaxprEqn, Literal, Var, add_call_constants, add_scan_constants, cond_p, remat_p, scan_constants
from ._hoist import HOISTED, split
from ._jaxpr import Atom, inline, opened, rebuilt


class Constancy(IntEnum):
    """How long a variable keeps its value."""

    CHANGES = 0
    IN_LOOP = 1
    """The innermost loop does not change it."""
    THROUGHOUT = 2
    """Nor does a loop around that one, and no conditional decides whether it is read."""


class Scope:
    """One jaxpr on its way: what stands for its variables, and which of them enclosing loops do not change."""

    def __init__(self, constancy: dict[Any, Constancy] | None, differentiated: bool) -> None:
        self.atoms: dict[Any, Atom] = {}
        self.constancy = constancy
        """None outside of loops."""
        self.differentiated = differentiated
        """Whether it is written to be differentiated: a rematerialised block, a tangent's rule."""

    def read(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self.atoms.get(atom, atom)

    def constancy_of(self, atom: Atom) -> Constancy:
        if isinstance(atom, Literal):
            return Constancy.THROUGHOUT
        return Constancy.CHANGES if self.constancy is None else self.constancy.get(atom, Constancy.CHANGES)

    def note(self, equations: Sequence[JaxprEqn]) -> None:
        """Enter what ``equations`` compute."""
        if self.constancy is None:
            return
        for equation in equations:
            of_operands = map(self.constancy_of, equation.invars)
            found = Constancy.CHANGES if equation.effects else min(of_operands, default=Constancy.THROUGHOUT)
            self.constancy.update(dict.fromkeys(equation.outvars, found))

    def of_loop_constants(self, atoms: Sequence[Atom]) -> list[Constancy]:
        """Of operands of a loop, within that loop, which does not change them."""
        if self.constancy is None:
            return [Constancy.THROUGHOUT] * len(atoms)
        return [max(Constancy.IN_LOOP, self.constancy_of(x)) for x in atoms]


class Rewrite(Protocol):
    """A jaxpr replaced, for arguments of this constancy; None stands for no loop around."""

    def __call__(
        self, jaxpr: Any, constancy: Sequence[Constancy] | None = None, differentiated: bool = False
    ) -> Any: ...


def scan(equation: JaxprEqn, scope: Scope, rewrite: Rewrite) -> Sequence[JaxprEqn]:
    params, operands = equation.params, equation.invars
    count = scan_constants(params)
    own = scope.of_loop_constants(operands[:count])
    before, body, new = _loop_body(
        equation, params["jaxpr"], operands[:count], own, len(operands) - count, scope, rewrite
    )
    if body is params["jaxpr"]:
        return [equation]
    params = add_scan_constants(params, len(new)) | {"jaxpr": body}
    return [*before, equation.replace(invars=[*operands[:count], *new, *operands[count:]], params=params)]


def while_loop(equation: JaxprEqn, scope: Scope, rewrite: Rewrite) -> Sequence[JaxprEqn]:
    params, operands = equation.params, equation.invars
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    carried = operands[of_cond + of_body :]
    before: list[JaxprEqn] = []
    consts: list[Atom] = []
    changed: dict[str, Any] = {}
    for name, own in (("cond", operands[:of_cond]), ("body", operands[of_cond : of_cond + of_body])):
        constancy, jaxpr = scope.of_loop_constants(own), params[f"{name}_jaxpr"]
        outside, jaxpr, new = _loop_body(equation, jaxpr, own, constancy, len(carried), scope, rewrite)
        before += outside
        consts += [*own, *new]
        changed |= {f"{name}_jaxpr": jaxpr, f"{name}_nconsts": len(own) + len(new)}
    if all(params[name] is value for name, value in changed.items() if name.endswith("jaxpr")):
        return [equation]
    return [*before, equation.replace(invars=[*consts, *carried], params=params | changed)]


def _loop_body(
    equation: JaxprEqn,
    jaxpr: Any,
    constants: Sequence[Atom],
    constancy: Sequence[Constancy],
    others: int,
    scope: Scope,
    rewrite: Rewrite,
) -> tuple[list[JaxprEqn], Any, list[Atom]]:
    """What to compute before a loop, its body, and the constants that it has besides ``constants``."""
    # Effects on references name operands by position.
    if any(hasattr(effect, "input_index") for effect in equation.effects):
        return [], rewrite(jaxpr), []
    of_arguments = [*constancy, *[Constancy.CHANGES] * others]
    body = rewrite(jaxpr, of_arguments, scope.differentiated)
    found = split(body, list(map(bool, of_arguments)), len(constants))
    if found is None:
        return [], body, []
    before, new = inline(found.outside, [x for x, fixed in zip(constants, constancy, strict=True) if fixed])
    return before, found.body, new


# Within a loop.


def jitted(equation: JaxprEqn, scope: Scope, rewrite: Rewrite) -> Sequence[JaxprEqn] | None:
    """A jitted function in a loop, open where something in it may leave the loop; None if nothing may."""
    constancy = list(map(scope.constancy_of, equation.invars))
    jaxpr = rewrite(equation.params["jaxpr"], constancy, scope.differentiated)
    if not any(e.primitive in HOISTED for e in opened(jaxpr).eqns):
        return None
    equations, results = inline(jaxpr, equation.invars)
    scope.atoms.update(zip(equation.outvars, results, strict=True))
    return equations


def block(
    equation: JaxprEqn, scope: Scope, rewrite: Rewrite, within: Callable[[JaxprEqn, Any], JaxprEqn]
) -> Sequence[JaxprEqn]:
    """A block in a loop: a conditional, a rematerialised block, a function with custom derivatives.

    What the loop does not change is taken out, and becomes an operand. ``within`` rewrites the rules of derivatives.
    """
    is_cond = equation.primitive is cond_p
    first, operands = equation.invars[:is_cond], equation.invars[is_cond:]
    constancy = list(map(scope.constancy_of, operands))
    if is_cond:
        # What a branch computes for its derivatives is kept for every iteration, even where it is always the same.
        constancy = [min(x, Constancy.IN_LOOP) for x in constancy]
    differentiated = scope.differentiated or equation.primitive is remat_p
    unsplit = within(equation, constancy)
    params = unsplit.params
    name = next(name for name in ("branches", "call_jaxpr", "jaxpr") if name in params)
    position = params.get("num_consts", len(operands))
    original = equation.params[name]
    blocks = [rewrite(x, constancy, differentiated) for x in (original if is_cond else [original])]
    parts = [split(x, list(map(bool, constancy)), position) for x in blocks]
    constants = [x for x, fixed in zip(operands, constancy, strict=True) if fixed]
    before: list[JaxprEqn] = []
    added: list[Atom] = []
    for i, part in enumerate(parts):
        if part is None:
            continue
        outside, new = inline(part.outside, constants)
        before += outside
        # Every branch takes what one of them needs.
        own, at = opened(part.body).invars[position : position + len(new)], position + len(added)
        added += new
        for j, other in enumerate(blocks):
            source, invars = opened(part.body if i == j else other), opened(other).invars
            more = own if i == j else [Var(x.aval) for x in own]
            invars = [*invars[:at], *more, *invars[at:]]
            blocks[j] = rebuilt(other, source.eqns, invars=invars, outvars=source.outvars)
    if not added:
        return [unsplit]
    changed: dict[str, Any] = {name: tuple(blocks) if is_cond else blocks[0]}
    if "num_consts" in params:
        params = add_call_constants(params, len(added))
    invars = [*first, *operands[:position], *added, *operands[position:]]
    return [*before, equation.replace(invars=invars, params=params | changed)]


def linear_solve(equation: JaxprEqn, scope: Scope, rewrite: Rewrite) -> Sequence[JaxprEqn]:
    """A linear solve in a loop: what the loop does not change is taken out of its functions."""
    params, operands = equation.params, list(equation.invars)
    jaxprs, lengths = params["jaxprs"]._asdict(), params["const_lengths"]._asdict()
    before: list[JaxprEqn] = []
    consts: list[Atom] = []
    for name, count in lengths.items():
        own, operands = operands[:count], operands[count:]
        consts += own
        if jaxprs[name] is None:
            continue
        others = len(opened(jaxprs[name]).invars) - count
        constancy = list(map(scope.constancy_of, own))
        outside, jaxprs[name], new = _loop_body(equation, jaxprs[name], own, constancy, others, scope, rewrite)
        before += outside
        consts += new
        lengths[name] += len(new)
    changed = {
        "jaxprs": type(params["jaxprs"])(**jaxprs),
        "const_lengths": type(params["const_lengths"])(**lengths),
    }
    return [*before, equation.replace(invars=[*consts, *operands], params=params | changed)]
