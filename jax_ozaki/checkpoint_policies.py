"""Policies for ``jax.checkpoint`` that treat an emulated product as the ``dot_general`` that it stands for.

jax's own policies of these names know ``dot_general`` only, and recompute emulated products. Those of
``jax.checkpoint_policies`` that are not here do not look at products, and need no other version.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from ._compat import dot_general_p
from ._prepared_product import ozaki_prepared_dot_general_p
from ._primitive import ozaki_dot_general_p

__all__ = [
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "offload_dot_with_no_batch_dims",
]

Policy = Callable[..., Any]


@cache
def seeing_products(policy: Policy) -> Policy:
    """``policy``, taking an emulated product for a dot_general."""

    def decide(primitive: Any, *avals: Any, **params: Any) -> Any:
        if primitive in (ozaki_dot_general_p, ozaki_prepared_dot_general_p):
            primitive = dot_general_p
        return policy(primitive, *avals, **params)

    return decide


def dots_saveable(primitive: Any, *avals: Any, **params: Any) -> Any:
    """Save the results of products and convolutions."""
    return seeing_products(jax.checkpoint_policies.dots_saveable)(primitive, *avals, **params)


def dots_with_no_batch_dims_saveable(primitive: Any, *avals: Any, **params: Any) -> Any:
    """Save the results of products without batch axes."""
    return seeing_products(jax.checkpoint_policies.dots_with_no_batch_dims_saveable)(primitive, *avals, **params)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Move the results of products without batch axes from one memory to another, and back when they are needed."""
    return seeing_products(jax.checkpoint_policies.offload_dot_with_no_batch_dims(offload_src, offload_dst))


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable
