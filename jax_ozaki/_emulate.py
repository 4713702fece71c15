"""``emulate``: a program with its products replaced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from ._contract import Contract
from ._explain_program import Explanation, explain_program
from ._settings import check_settings, settings
from ._substitute import Call


class Emulated(Protocol):
    """A function whose products are emulated."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What becomes of each product for these arguments; computes none of them."""


def emulate(
    fn: Callable[..., Any],
    contract: Contract | None = None,
    *,
    min_size: float | None = None,
    workspace_bytes: int | None = None,
) -> Emulated:
    """``fn`` with every float64 product in it emulated, at any depth.

    Products are replaced wherever a jaxpr shows them: in jit, scan, while, cond, checkpoint, shard_map,
    custom_linear_solve and the rules of custom_jvp and custom_vjp. ``emulate`` composes with every
    transformation on either side: ``emulate(grad(f))`` and ``grad(emulate(f))`` are emulated throughout.

    An operand that a loop does not change is quantized once, before the loop, as long as its residues fit
    ``workspace_bytes``; for the loop backwards of a gradient too. ``grad(emulate(f))`` leaves two cases to the loop
    backwards: branches of ``cond``, where jax would keep the residues of every iteration, and backward rules of
    ``custom_vjp``, which jax runs when nothing leaves the loop any more. ``emulate(grad(f))`` has neither.

    Decompositions and solves (cholesky, lu, qr, eigh, svd, triangular_solve) are no products and stay XLA's; the
    products in their derivatives are emulated. A library's primitive is emulated in its lowering and its derivatives,
    if it has any. One without derivatives may create products when it is lowered that only :func:`enable` reaches,
    and products in kernels (Pallas) stay native: ``explain`` counts them.

    A function among the results, as ``jax.vjp`` returns one, keeps its native products.

    The arguments keep their structure. Arrays among their leaves are traced, as by ``jit``; everything else (Python
    numbers, strings, functions) reaches ``fn`` as it is. Wrap the result in ``jit`` to trace it once.

    Arguments:
        fn: a function of pytrees, jitted or not.
        contract: what the products promise; None takes the default contract.
        min_size: products whose harmonic mean of m, n and k is below it stay native, outside contract and bit
            identity, and are listed by ``explain``. None takes the crossover measured on this kind of device, 0 where
            none was measured and on a CPU; 0 emulates everything.
        workspace_bytes: bytes of residues that a product may hold; None takes the default.

    Returns a function with the signature of ``fn``, and an attribute ``explain`` that takes the same arguments and
    returns an :class:`Explanation`.

    Raises TypeError for an ``fn`` that cannot be called, and for a ``min_size`` that is no number; ValueError for a
    negative one. The returned function raises ValueError for a contract that cannot be kept.
    """
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: a function is needed.")
    check_settings(contract, min_size, workspace_bytes)

    @functools.wraps(fn, updated=())
    def emulated(*args: Any, **kwargs: Any) -> Any:
        return Call(settings(contract, min_size, workspace_bytes))(fn, *args, **kwargs)

    def explain(*args: Any, **kwargs: Any) -> Explanation:
        return explain_program(settings(contract, min_size, workspace_bytes), fn, *args, **kwargs)

    emulated.explain = explain  # type: ignore[attr-defined]
    return emulated  # type: ignore[return-value]
