"""A primitive that stands for another and has its rules rewritten when they are used.

Decompositions and solves are no products, but their derivatives multiply; a library's primitive may multiply in its
lowering too. Derivatives taken of a rewritten program must be rewritten, at any order, in batches and transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import dtypes

from . import _switch
from ._compat import Primitive, ad, batching, evaluate_eagerly, mlir

watched_p = Primitive("ozaki_watched")
"""Parameters: the primitive it stands for (``of``), its ``params`` as a tuple of items, and ``rewrite``, which calls a rule
with its products replaced. Always several results."""
watched_p.multiple_results = True
evaluate_eagerly(watched_p)


def watch(
    primitive: Primitive, params: dict[str, Any], rewrite: Callable[..., Any], operands: tuple[Any, ...]
) -> list[Any]:
    """The results of ``primitive``, as a list."""
    return watched_p.bind(*operands, of=primitive, params=tuple(sorted(params.items())), rewrite=rewrite)


def _bind(*operands: Any, of: Primitive, params: Any, rewrite: Any = None) -> list[Any]:
    del rewrite
    results = of.bind(*operands, **dict(params))
    return list(results) if of.multiple_results else [results]


@watched_p.def_effectful_abstract_eval
def _abstract_eval(*avals: Any, of: Primitive, params: Any, rewrite: Any) -> Any:
    del rewrite
    results, effects = of.abstract_eval(*avals, **dict(params))
    return (list(results) if of.multiple_results else [results]), effects


def _jvp(primals: Any, tangents: Any, *, rewrite: Any, **params: Any) -> Any:
    active = [i for i, x in enumerate(tangents) if not isinstance(x, ad.Zero)]

    def of_active(*values: Any) -> list[Any]:
        operands = list(primals)
        for i, value in zip(active, values, strict=True):
            operands[i] = value
        return _bind(*operands, **params)

    def both(*arguments: Any) -> Any:
        return jax.jvp(of_active, arguments[: len(active)], arguments[len(active) :])

    results, derivatives = rewrite(both, *(primals[i] for i in active), *(tangents[i] for i in active))
    zero = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]
    return results, [z if d.dtype == dtypes.float0 else d for d, z in zip(derivatives, zero, strict=True)]


def _transpose(cotangents: Any, *operands: Any, of: Primitive, params: Any, rewrite: Any) -> Any:
    cotangent = cotangents if of.multiple_results else cotangents[0]
    return rewrite(ad.primitive_transposes[of], cotangent, *operands, **dict(params))


def _batch(axis_data: Any, operands: Any, axes: Any, *, of: Primitive, params: Any, rewrite: Any) -> Any:
    if of in batching.fancy_primitive_batchers:
        rule = partial(batching.fancy_primitive_batchers[of], axis_data)
    else:
        rules: Any = batching.primitive_batchers
        rule = rules[of]
    results, mapped = rewrite(lambda *operands: rule(operands, axes, **dict(params)), *operands)
    return (results, mapped) if of.multiple_results else ([results], [mapped])


ad.primitive_jvps[watched_p] = _jvp
ad.primitive_transposes[watched_p] = _transpose
batching.fancy_primitive_batchers[watched_p] = _batch


def _lower(ctx: Any, *operands: Any, rewrite: Any, **params: Any) -> Any:
    # What the primitive's own lowering multiplies is emulated there.
    with _switch.context(rewrite.switch):
        return mlir.lower_fun(_bind, multiple_results=True)(ctx, *operands, **params)


mlir.register_lowering(watched_p, _lower)


def can_be_watched(params: dict[str, Any]) -> bool:
    """Whether jax can cache an equation that holds these parameters as one."""
    try:
        hash(tuple(params.items()))
    except TypeError:
        return False
    return True


def is_foreign(primitive: Primitive) -> bool:
    """Whether a primitive's derivative is written outside jax, where it may multiply; so may its lowering."""
    rule = ad.primitive_jvps.get(primitive)
    while isinstance(rule, partial):
        rule = rule.func
    return rule is not None and rule.__module__.partition(".")[0] not in ("jax", "jax_ozaki")
