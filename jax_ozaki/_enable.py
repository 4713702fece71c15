"""``enable``: products emulated where they are lowered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from . import _switch
from ._compat import (
    allow_partitioning,
    dot_general_p,
    is_tracing,
    mlir,
    override_lowering,
)
from ._contract import Contract
from ._explain_program import Explanation, explain_program
from ._rewrite import multiply
from ._settings import check_settings, settings
from ._switch import Switch


class enable:
    """A block, or as a decorator a function, in which every float64 and complex128 product is emulated when lowered.

    It reaches every product that jax lowers, also those that a primitive creates there and no jaxpr shows. What
    counts is the block in which a program is *lowered*: for a jitted function, that of its call. The switch is part
    of the jit key, so nothing compiled outside is used inside, or the reverse, and it is thread-local.
    ``JAX_OZAKI_ENABLE=1`` sets it for a process.

    A function that ``jax.vjp`` or ``jax.linearize`` returned in the block, or a ``jax.jit(f).trace(...)`` made
    there, is native when it is called or lowered outside. Products that a call makes native with
    ``contract=Contract.native()`` stay native. Loops are XLA's: it moves quantizations of what a loop does not
    change out of it on the CPU only, where ``emulate`` does so everywhere.

    Arguments: ``contract``, ``min_size`` and ``workspace_bytes`` as in :func:`emulate`.

    Entering the block raises RuntimeError while jax is tracing: what is traced there will be lowered later. Use
    ``emulate`` in a traced function.
    """

    def __init__(
        self, contract: Contract | None = None, *, min_size: float | None = None, workspace_bytes: int | None = None
    ) -> None:
        check_settings(contract, min_size, workspace_bytes)
        self._switch = Switch(contract, min_size, workspace_bytes)
        self._entered: list[Any] = []

    def __enter__(self) -> enable:
        if is_tracing():
            raise RuntimeError(
                "jax_ozaki.enable was entered while jax is tracing: what is traced here is lowered later, outside. "
                "Enter it around the call of the outermost transformation, or use jax_ozaki.emulate here."
            )
        allow_partitioning(dot_general_p)
        block = _switch.context(self._switch)
        block.__enter__()
        self._entered.append(block)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.pop().__exit__(*exception)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn`` in a block of its own, to be called outside of jit, grad, vmap and the like.

        Raises TypeError for an ``fn`` that cannot be called, or whose body runs after the call: a generator, a coroutine.
        """
        if not callable(fn):
            raise TypeError(f"fn={fn!r}: a function is needed.")
        if any(is_kind(fn) for is_kind in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
            raise TypeError(f"fn={fn!r}: its body runs after the call. Enter a block where it runs.")

        @wraps(fn)
        def enabled(*args: Any, **kwargs: Any) -> Any:
            with enable(**self._switch._asdict()):  # threads share self
                return fn(*args, **kwargs)

        return enabled

    def explain(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
        """What becomes of each product of ``fn(*args, **kwargs)`` in the block; computes none of them.

        Raises TypeError for an ``fn`` that cannot be called.
        """
        if not callable(fn):
            raise TypeError(f"fn={fn!r}: a function is needed.")
        return explain_program(settings(*self._switch), fn, *args, reaches_lowering=True, **kwargs)


def _lower(original: Any, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """The lowering of dot_general: jax's own, but for products that ``enable`` emulates."""
    switch, (result,) = _switch.context.value, ctx.avals_out
    if switch is None or _switch.is_native(ctx.jaxpr_eqn_ctx):
        return original(ctx, lhs, rhs, **params)
    chosen = settings(*switch)
    of_lhs, of_rhs = ctx.avals_in
    if chosen.native_because(of_lhs, of_rhs, result, params):
        return original(ctx, lhs, rhs, **params)
    product = partial(
        multiply,
        params=params,
        result=result,
        contract=chosen.contract,
        workspace_bytes=chosen.workspace_bytes,
    )
    return mlir.lower_fun(product, multiple_results=False)(ctx, lhs, rhs)


override_lowering(dot_general_p, _lower)
if _switch.context.value is not None:
    allow_partitioning(dot_general_p)
