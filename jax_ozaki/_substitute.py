"""Jaxprs with their products replaced, at any depth.

A product's replacement is traced by itself, and its equations stand where the ``dot_general`` stood. Every other
equation stays what it was, with its inner jaxprs and its custom rules replaced in turn: names, shardings, donation,
effects and source lines are those of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun, primitives

from . import _dimensions
from ._compat import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Var,
    add_scan_constants,
    cond_p,
    custom_jvp_call_p,
    custom_linear_solve_p,
    custom_vjp_call_p,
    custom_vmap_p,
    dot_general_p,
    has_shardings,
    jit_p,
    remat_p,
    scan_constants,
    scan_p,
    symmetric_product_p,
    trace,
    while_p,
    wrapped,
)
from ._hoist import HOISTED, Form, form, is_invariant, split
from ._jaxpr import inline, inner_jaxprs, map_inner, opened, rebuilt
from ._prepare import preparable
from ._rewrite import emulates, multiply
from ._settings import Settings
from ._switch import Switch
from ._watched import can_be_watched, is_foreign, watch
from .checkpoint_policies import seeing_products

Atom = Any

_WATCHED = frozenset(
    getattr(primitives, name)
    for name in (
        "cholesky_p",
        "eig_p",
        "eigh_p",
        "householder_product_p",
        "lu_p",
        "qr_p",
        "svd_p",
        "triangular_solve_p",
    )
) | {symmetric_product_p}
"""jax's primitives without products, whose derivatives have some; one multiplies when it is lowered."""

OPAQUE = frozenset({"core_map", "custom_partitioning", "pallas_call"})
"""Names of primitives whose jaxprs are not what they compute, or are kernels."""


@dataclass(frozen=True)
class Call:
    """Calls functions with their products replaced."""

    settings: Settings

    @property
    def switch(self) -> Switch:
        """What ``enable`` is told for the same."""
        return Switch(self.settings.contract, self.settings.min_size, self.settings.workspace_bytes)

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``fn(*args, **kwargs)``.

        Arrays are traced; other leaves of the arguments reach ``fn``, and other leaves of its result the caller,
        as they are.
        """
        closed, arrays, results = staged(fn, *args, **kwargs)
        return results(jaxpr_as_fun(Substitution(self.settings).rewrite(closed))(*arrays))


def staged(
    fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[ClosedJaxpr, list[Any], Callable[[Sequence[Any]], Any]]:
    """The jaxpr of ``fn`` for these arguments, the arrays among them, and how its results become those of ``fn``."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    positions = [i for i, x in enumerate(leaves) if _is_array(x)]
    returned: list[Any] = []
    returned_tree: Any = None

    def of_arrays(*arrays: Any) -> list[Any]:
        nonlocal returned, returned_tree
        filled = list(leaves)
        for i, x in zip(positions, arrays, strict=True):
            filled[i] = x
        args, kwargs = jax.tree.unflatten(tree, filled)
        returned, returned_tree = jax.tree.flatten(fn(*args, **kwargs))
        traced = [x for x in returned if _is_array(x)]
        returned = [None if _is_array(x) else x for x in returned]
        is_traced.extend(x is None for x in returned)
        return traced

    is_traced: list[bool] = []

    def results(traced: Sequence[Any]) -> Any:
        values = iter(traced)
        return jax.tree.unflatten(
            returned_tree, [next(values) if of_array else x for x, of_array in zip(returned, is_traced, strict=True)]
        )

    arrays = [leaves[i] for i in positions]
    return jax.make_jaxpr(of_arrays)(*arrays), arrays, results


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


class Scope:
    """One jaxpr on its way: what stands for its variables, and which of them an enclosing loop does not change."""

    def __init__(self, invariant: set[Any] | None) -> None:
        self.atoms: dict[Any, Atom] = {}
        self.invariant = invariant

    def read(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self.atoms.get(atom, atom)

    def is_invariant(self, atom: Atom) -> bool:
        return self.invariant is not None and (isinstance(atom, Literal) or atom in self.invariant)

    def note(self, equations: Sequence[JaxprEqn]) -> None:
        """Enter what ``equations`` compute."""
        for equation in equations:
            if self.invariant is not None and is_invariant(equation, self.invariant):
                self.invariant.update(equation.outvars)


class Substitution:
    """Replaces the products of jaxprs under ``settings``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def enters(self, equation: JaxprEqn) -> bool:
        """Whether there may be products within an equation, or within its derivatives."""
        return self.is_watched(equation) or bool(inner_jaxprs(equation.params))

    def is_watched(self, equation: JaxprEqn) -> bool:
        """Whether an equation multiplies float64 in its derivatives or its lowering, where no jaxpr shows it."""
        if equation.primitive not in _WATCHED and not is_foreign(equation.primitive):
            return False
        if equation.effects or self.settings.contract.kind == "native":
            return False
        dtypes = [getattr(x.aval, "dtype", None) for x in equation.invars]
        return any(emulates(x, x, x) for x in dtypes) and can_be_watched(equation.params)

    def rewrite(self, jaxpr: Any, constant: Sequence[bool] | None = None) -> Any:
        """``jaxpr`` replaced; itself if there is nothing to replace.

        ``constant`` marks the arguments that an enclosing loop does not change. The result is the same object
        each time, so that what jax caches for it is found again.
        """
        key = (type(self), self.settings, constant if constant is None else tuple(constant))
        known = _rewritten.setdefault(jaxpr, {})
        if key not in known:
            known[key] = self._rewrite(jaxpr, constant)
        return jaxpr if known[key] is None else known[key]

    def _rewrite(self, jaxpr: Any, constant: Sequence[bool] | None) -> Any:
        inner = opened(jaxpr)
        scope = Scope(None)
        if constant is not None:
            fixed = {x for x, is_fixed in zip(inner.invars, constant, strict=True) if is_fixed}
            scope = Scope(fixed.union(inner.constvars))
        equations: list[JaxprEqn] = []
        for equation in inner.eqns:
            operands = [scope.read(x) for x in equation.invars]
            if any(x is not y for x, y in zip(operands, equation.invars, strict=True)):
                equation = equation.replace(invars=operands)
            replaced = self._equation(equation, scope)
            scope.note(replaced)
            equations += replaced
        outvars = [scope.read(x) for x in inner.outvars]
        same = len(equations) == len(inner.eqns) and all(
            x is y for x, y in zip([*equations, *outvars], [*inner.eqns, *inner.outvars], strict=True)
        )
        if same:
            return None
        return rebuilt(jaxpr, equations, outvars=outvars)

    def _equation(self, equation: JaxprEqn, scope: Scope) -> Sequence[JaxprEqn]:
        primitive = equation.primitive
        if primitive is dot_general_p:
            return self._product(equation, scope)
        if primitive.name in OPAQUE:
            return [equation]
        if self.is_watched(equation):
            return self._watched(equation, scope)
        if primitive is scan_p:
            return self._scan(equation)
        if primitive is while_p:
            return self._while(equation)
        if scope.invariant is not None:
            if primitive is jit_p and not has_shardings(equation.params):
                return self._jit_in_loop(equation, scope)
            if primitive in (cond_p, remat_p, custom_jvp_call_p):
                return self._block_in_loop(equation, scope)
            if primitive is custom_linear_solve_p:
                return self._linear_solve_in_loop(equation, scope)
        return [self._within(equation)]

    def _within(self, equation: JaxprEqn) -> JaxprEqn:
        """An equation with its inner jaxprs and rules replaced."""
        params = map_inner(equation.params, self.rewrite)
        if equation.primitive in (custom_jvp_call_p, custom_vjp_call_p, custom_vmap_p):
            return equation.replace(params=params | self._rules(params))
        same = all(params[name] is value for name, value in equation.params.items())
        return equation if same else equation.replace(params=params | _policy(params))

    # Products.

    def _product(self, equation: JaxprEqn, scope: Scope) -> Sequence[JaxprEqn]:
        (lhs, rhs), (result,), params = equation.invars, equation.outvars, equation.params
        avals = lhs.aval, rhs.aval
        if self.settings.native_because(*avals, result.aval, params):
            return [equation]
        replacement = partial(
            multiply,
            params=params,
            result=result.aval,
            contract=self.settings.contract,
            workspace_bytes=self.settings.workspace_bytes,
        )
        layout = self._form(equation, scope)
        if layout is None:
            closed = _trace(lambda x, y: [replacement(x, y)], avals, equation)
            equations, results = inline(closed, [lhs, rhs], equation)
        else:
            side, operands = layout.side, [lhs, rhs]
            tree: Any = None

            def prepare(x: Any) -> list[Any]:
                nonlocal tree
                leaves, tree = jax.tree.flatten(layout.prepare(x, self.settings.contract))
                return leaves

            def product(x: Any, *leaves: Any) -> list[Any]:
                prepared = jax.tree.unflatten(tree, leaves)
                other = layout.lay_out(x, 1 - side)
                both = (prepared, other) if side == 0 else (other, prepared)
                return [replacement(*both, params=params | {"dimension_numbers": layout.dimension_numbers})]

            closed = _trace(prepare, [avals[side]], equation)
            quantized, leaves = inline(closed, [operands[side]], equation)
            closed = _trace(product, [avals[1 - side], *(x.aval for x in leaves)], equation)
            equations, results = inline(closed, [operands[1 - side], *leaves], equation)
            equations = quantized + equations
        scope.atoms[result] = results[0]
        return equations

    def _form(self, equation: JaxprEqn, scope: Scope) -> Form | None:
        """How to prepare the one operand that the loop around does not change, if that is possible."""
        fixed = [scope.is_invariant(x) for x in equation.invars]
        avals = [cast(Any, x.aval) for x in equation.invars]
        plain = equation.params["out_sharding"] is None and all(x.sharding.mesh.empty for x in avals)
        if sum(fixed) != 1 or not plain or not preparable(self.settings.contract):
            return None
        numbers = _dimensions.canonical(equation.params["dimension_numbers"])
        lhs, rhs = avals
        found = form(lhs, rhs, numbers, fixed.index(True))
        # What is prepared is held as long as the loop runs.
        held = found and found.residue_bytes(self.settings.contract)
        return found if held and held <= self.settings.workspace_bytes else None

    # Loops: what they do not change is quantized outside.

    def _scan(self, equation: JaxprEqn) -> Sequence[JaxprEqn]:
        params, operands = equation.params, equation.invars
        count = scan_constants(params)
        before, body, new = self._loop_body(equation, params["jaxpr"], operands[:count], len(operands) - count)
        if body is params["jaxpr"]:
            return [equation]
        params = add_scan_constants(params, len(new)) | {"jaxpr": body}
        return [*before, equation.replace(invars=[*operands[:count], *new, *operands[count:]], params=params)]

    def _while(self, equation: JaxprEqn) -> Sequence[JaxprEqn]:
        params, operands = equation.params, equation.invars
        of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
        carried = operands[of_cond + of_body :]
        before: list[JaxprEqn] = []
        consts: list[Atom] = []
        changed: dict[str, Any] = {}
        for name, own in (("cond", operands[:of_cond]), ("body", operands[of_cond : of_cond + of_body])):
            outside, jaxpr, new = self._loop_body(equation, params[f"{name}_jaxpr"], own, len(carried))
            before += outside
            consts += [*own, *new]
            changed |= {f"{name}_jaxpr": jaxpr, f"{name}_nconsts": len(own) + len(new)}
        if all(params[name] is value for name, value in changed.items() if name.endswith("jaxpr")):
            return [equation]
        return [*before, equation.replace(invars=[*consts, *carried], params=params | changed)]

    def _loop_body(
        self,
        equation: JaxprEqn,
        jaxpr: Any,
        constants: Sequence[Atom],
        others: int,
        which: Sequence[bool] | None = None,
    ) -> tuple[list[JaxprEqn], Any, list[Atom]]:
        """What to compute before a loop, its body, and the constants that it has besides ``constants``.

        ``which`` of these do not change, if not all.
        """
        # Effects on references name operands by position.
        if any(hasattr(effect, "input_index") for effect in equation.effects):
            return [], self.rewrite(jaxpr), []
        which = [True] * len(constants) if which is None else which
        fixed = [*which, *[False] * others]
        body = self.rewrite(jaxpr, fixed)
        found = split(body, fixed, len(constants))
        if found is None:
            return [], body, []
        before, new = inline(found.outside, [x for x, same in zip(constants, which, strict=True) if same])
        return before, found.body, new

    def _jit_in_loop(self, equation: JaxprEqn, scope: Scope) -> Sequence[JaxprEqn]:
        """A jitted function in a loop, open where something in it may leave the loop."""
        jaxpr = self.rewrite(equation.params["jaxpr"], [scope.is_invariant(x) for x in equation.invars])
        if not any(e.primitive in HOISTED for e in opened(jaxpr).eqns):
            return [self._within(equation)]
        equations, results = inline(jaxpr, equation.invars)
        scope.atoms.update(zip(equation.outvars, results, strict=True))
        return equations

    def _block_in_loop(self, equation: JaxprEqn, scope: Scope) -> Sequence[JaxprEqn]:
        """A block in a loop: a conditional, a rematerialised block, a custom_jvp. What the loop does not
        change is taken out, and becomes an operand."""
        params = self._within(equation).params
        is_cond = equation.primitive is cond_p
        first, operands = equation.invars[:is_cond], equation.invars[is_cond:]
        name = next(name for name in ("branches", "call_jaxpr", "jaxpr") if name in params)
        position = params.get("num_consts", len(operands))
        fixed = [scope.is_invariant(x) for x in operands]
        original = equation.params[name]
        blocks = [self.rewrite(x, fixed) for x in (original if is_cond else [original])]
        parts = [split(block, fixed, position) for block in blocks]
        constants = [x for x, is_fixed in zip(operands, fixed, strict=True) if is_fixed]
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
            for j, block in enumerate(blocks):
                source, invars = opened(part.body if i == j else block), opened(block).invars
                more = own if i == j else [Var(x.aval) for x in own]
                invars = [*invars[:at], *more, *invars[at:]]
                blocks[j] = rebuilt(block, source.eqns, invars=invars, outvars=source.outvars)
        if not added:
            return [self._within(equation)]
        changed: dict[str, Any] = {name: tuple(blocks) if is_cond else blocks[0]}
        if "num_consts" in params:
            changed["num_consts"] = position + len(added)
        invars = [*first, *operands[:position], *added, *operands[position:]]
        return [*before, equation.replace(invars=invars, params=params | changed)]

    def _linear_solve_in_loop(self, equation: JaxprEqn, scope: Scope) -> Sequence[JaxprEqn]:
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
            outside, jaxprs[name], new = self._loop_body(
                equation, jaxprs[name], own, others, [scope.is_invariant(x) for x in own]
            )
            before += outside
            consts += new
            lengths[name] += len(new)
        changed = {
            "jaxprs": type(params["jaxprs"])(**jaxprs),
            "const_lengths": type(params["const_lengths"])(**lengths),
        }
        return [*before, equation.replace(invars=[*consts, *operands], params=params | changed)]

    # Derivatives.

    def _rules(self, params: dict[str, Any]) -> dict[str, Any]:
        """The custom rules of a function, rewritten when they are used."""
        rules: dict[str, Any] = {}
        for name in ("jvp_jaxpr_fun", "fwd_jaxpr_thunk"):
            if name in params:
                rules[name] = wrapped(partial(self._rule, params[name]), params[name])
        if "bwd" in params:
            rules["bwd"] = wrapped(partial(Call(self.settings), params["bwd"].call_wrapped), params["bwd"])
        if "rule" in params:
            rules["rule"] = partial(Call(self.settings), params["rule"])
        return rules

    def _rule(self, rule: Any, *zeros: Any) -> tuple[Any, ...]:
        jaxpr, *rest = rule.call_wrapped(*zeros)
        return (self.rewrite(jaxpr), *rest)

    def _watched(self, equation: JaxprEqn, scope: Scope) -> Sequence[JaxprEqn]:
        """A decomposition, a solve, a library's primitive: emulated where it is lowered or differentiated."""

        def watched(*operands: Any) -> list[Any]:
            return watch(equation.primitive, equation.params, Call(self.settings), operands)

        closed = _trace(watched, [x.aval for x in equation.invars], equation)
        equations, results = inline(closed, equation.invars, equation)
        scope.atoms.update(zip(equation.outvars, results, strict=True))
        return equations


_rewritten: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def _policy(params: dict[str, Any]) -> dict[str, Any]:
    """The policy of a rematerialised block, made to see emulated products as it sees others."""
    return {"policy": seeing_products(params["policy"])} if params.get("policy") else {}


def _trace(fn: Callable[..., Any], avals: Sequence[Any], site: JaxprEqn) -> ClosedJaxpr:
    with site.ctx.manager:
        return trace(fn, avals)
