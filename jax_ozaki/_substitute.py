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
from jax import lax
from jax.extend.core import jaxpr_as_fun, primitives

from . import _dimensions, _field, _loops
from ._compat import (
    ClosedJaxpr,
    JaxprEqn,
    cond_p,
    custom_jvp_call_p,
    custom_linear_solve_p,
    custom_vjp_call_p,
    custom_vmap_p,
    dot_general_p,
    has_shardings,
    jit_p,
    remat_p,
    scan_p,
    site_of,
    symmetric_product_p,
    trace,
    while_p,
    wrapped,
)
from ._form import Form, form
from ._jaxpr import inline, inner_jaxprs, map_inner, opened, rebuilt
from ._loops import Constancy, Scope
from ._prepare import Prepared, preparable
from ._rewrite import emulates, multiply
from ._settings import Settings
from ._switch import Switch
from ._watched import can_be_watched, is_foreign, watch
from .checkpoint_policies import seeing_products

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

    def rewrite(self, jaxpr: Any, constancy: Sequence[Constancy] | None = None, differentiated: bool = False) -> Any:
        """``jaxpr`` replaced; itself if there is nothing to replace.

        ``constancy`` is that of the arguments in the loops around, None outside of loops, and ``differentiated``
        whether the jaxpr is written to be. The result is the same object each time, so that what jax caches for it
        is found again.
        """
        key = (type(self), self.settings, None if constancy is None else tuple(constancy), differentiated)
        known = _rewritten.setdefault(jaxpr, {})
        if key not in known:
            known[key] = self._rewrite(jaxpr, constancy, differentiated)
        return jaxpr if known[key] is None else known[key]

    def _rewrite(self, jaxpr: Any, constancy: Sequence[Constancy] | None, differentiated: bool) -> Any:
        inner = opened(jaxpr)
        of_variables: dict[Any, Constancy] | None = None
        if constancy is not None:
            of_variables = dict.fromkeys(inner.constvars, Constancy.THROUGHOUT)
            of_variables.update(zip(inner.invars, constancy, strict=True))
        scope = Scope(of_variables, differentiated)
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
            return _loops.scan(equation, scope, self.rewrite)
        if primitive is while_p:
            return _loops.while_loop(equation, scope, self.rewrite)
        if scope.constancy is not None:
            if primitive is jit_p and not has_shardings(equation.params):
                return _loops.jitted(equation, scope, self.rewrite) or [self._within(equation)]
            if primitive in (cond_p, remat_p, custom_jvp_call_p, custom_vjp_call_p):
                return _loops.block(equation, scope, self.rewrite, self._within)
            if primitive is custom_linear_solve_p:
                return _loops.linear_solve(equation, scope, self.rewrite)
        return [self._within(equation)]

    def _within(self, equation: JaxprEqn, constancy: Sequence[Constancy] | None = None) -> JaxprEqn:
        """An equation with its inner jaxprs and rules replaced; ``constancy`` is that of its operands in a loop."""
        params = map_inner(equation.params, self.rewrite)
        if equation.primitive in (custom_jvp_call_p, custom_vjp_call_p, custom_vmap_p):
            return equation.replace(params=params | self._rules(params, constancy))
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
                leaves, tree = jax.tree.flatten(self._prepared(layout, x, operands[side], scope))
                return leaves

            def product(x: Any, *leaves: Any) -> list[Any]:
                prepared = jax.tree.unflatten(tree, leaves)
                other = layout.lay_out(x, 1 - side)
                both = (prepared, other) if side == 0 else (other, prepared)
                changed = {"dimension_numbers": layout.dimension_numbers}
                return [lax.reshape(replacement(*both, params=params | changed), cast(Any, result.aval).shape)]

            closed = _trace(prepare, [avals[side]], equation)
            quantized, leaves = inline(closed, [operands[side]], equation)
            closed = _trace(product, [avals[1 - side], *(x.aval for x in leaves)], equation)
            equations, results = inline(closed, [operands[1 - side], *leaves], equation)
            equations = quantized + equations
        scope.atoms[result] = results[0]
        return equations

    def _form(self, equation: JaxprEqn, scope: Scope) -> Form | None:
        """How to prepare the one operand that the loop around does not change, if that is possible."""
        if scope.constancy is None:
            return None
        fixed = [scope.constancy_of(x) > Constancy.CHANGES for x in equation.invars]
        lhs, rhs = (cast(Any, x.aval) for x in equation.invars)
        same = lhs.dtype == rhs.dtype and lhs.dtype in _field.DTYPES
        if sum(fixed) != 1 or not (same and preparable(self.settings.contract, lhs.dtype)):
            return None
        numbers = _dimensions.canonical(equation.params["dimension_numbers"])
        found = form(lhs, rhs, numbers, fixed.index(True))
        if found is None or not self._fits(found, lhs.dtype):  # it is held as long as the loop runs
            return None
        # ``out_sharding`` names the axes of the product as it is.
        asked = equation.params["out_sharding"] is not None
        return None if asked and found.result_ndim != cast(Any, equation.outvars[0].aval).ndim else found

    def _fits(self, layout: Form, dtype: Any, *, transposed: bool = False) -> bool:
        return layout.fits(self.settings.contract, dtype, self.settings.workspace_bytes, transposed=transposed)

    def _prepared(self, layout: Form, x: Any, variable: Any, scope: Scope) -> Prepared:
        """The operand ``variable``, with the value ``x``, prepared."""
        if scope.constancy_of(variable) < Constancy.THROUGHOUT:
            return layout.prepare(x, self.settings.contract)
        transposed = scope.differentiated and self._fits(layout, x.dtype, transposed=True)
        return layout.prepare_invariant(x, self.settings.contract, transposed=transposed)

    # Derivatives.

    def _rules(self, params: dict[str, Any], constancy: Sequence[Constancy] | None) -> dict[str, Any]:
        """The custom rules of a function, rewritten when they are used."""
        if constancy is not None:
            # Partial evaluation takes what a rule quantizes out of all the loops around it, or out of none.
            of_all = [x if x is Constancy.THROUGHOUT else Constancy.CHANGES for x in constancy]
            constancy = of_all[params.get("num_consts", 0) :]
        rules: dict[str, Any] = {}
        for name, differentiated in (("jvp_jaxpr_fun", True), ("fwd_jaxpr_thunk", False)):
            if name in params:
                rule = partial(self._rule, params[name], constancy, differentiated)
                rules[name] = wrapped(rule, params[name])
        if "bwd" in params:
            rules["bwd"] = wrapped(partial(Call(self.settings), params["bwd"].call_wrapped), params["bwd"])
        if "rule" in params:
            rules["rule"] = partial(Call(self.settings), params["rule"])
        return rules

    def _rule(
        self, rule: Any, constancy: Sequence[Constancy] | None, differentiated: bool, *zeros: Any
    ) -> tuple[Any, ...]:
        jaxpr, *rest = rule.call_wrapped(*zeros)
        if constancy is None:
            return (self.rewrite(jaxpr), *rest)
        tangents = len(opened(jaxpr).invars) - len(constancy)
        return (self.rewrite(jaxpr, [*constancy, *[Constancy.CHANGES] * tangents], differentiated), *rest)

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
    with site_of(site):
        return trace(fn, avals)
