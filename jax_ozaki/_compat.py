"""Everything that jax does not export publicly, in one place.

A new jax release is adopted by making this file work; nothing else imports ``jax._src``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
from jax._src.core import pvary_p
from jax._src.dispatch import apply_primitive, prim_requires_devices_during_lowering
from jax._src.effects import no_effects
from jax._src.interpreters.batching import get_sharding_for_vmap as mapped_sharding
from jax._src.interpreters.mlir import lower_per_platform
from jax._src.interpreters.mlir import lower_with_sharding_in_types as annotate_sharding
from jax._src.lax.lax import _convert_element_type as convert_element_type
from jax._src.mesh import thread_resources
from jax._src.xla_bridge import backends_are_initialized
from jax.extend.backend import backends
from jax.extend.core import Primitive
from jax.extend.core.primitives import dot_general_p, jit_p
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import ir

__all__ = [
    "INLINE",
    "Primitive",
    "ad",
    "allow_partitioning",
    "annotate_sharding",
    "batching",
    "convert_element_type",
    "dot_general_p",
    "evaluate_eagerly",
    "initialized_platforms",
    "jit_p",
    "mapped_sharding",
    "mesh_of_rules",
    "mlir",
    "pvary_p",
    "register_lowering",
    "transpose_source",
]


INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True
"""The ``inline`` of a jitted function that leaves no call in the caller's jaxpr."""


def evaluate_eagerly(primitive: Primitive) -> None:
    """Give ``primitive`` the standard implementation: compile it alone and run it."""
    primitive.def_impl(partial(apply_primitive, primitive))


def allow_partitioning(primitive: Primitive) -> None:
    """Let the lowering of ``primitive`` contain a custom_partitioning call, which asks for the devices."""
    prim_requires_devices_during_lowering.add(primitive)


@contextmanager
def mesh_of_rules(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """The mesh in whose axes custom_partitioning tells its rules what is sharded, where it knows none."""
    outer = thread_resources.env
    thread_resources.env = outer.with_mesh(mesh)
    try:
        yield
    finally:
        thread_resources.env = outer


def register_lowering(primitive: Primitive, rules: dict[str | None, Any]) -> None:
    """Lower ``primitive`` by the rule of the platform; None stands for every other one.

    A rule is not cached as a function of its own, behind which it would not see a transposed operand.
    """
    specific = {platform: rule for platform, rule in rules.items() if platform is not None}

    def rule(ctx: Any, *values: Any, **params: Any) -> Any:
        # For several platforms jax needs a list here, and gives uncached rules a tuple.
        ctx = ctx.replace(avals_out=list(ctx.avals_out))
        return lower_per_platform(ctx, str(primitive), specific, rules[None], no_effects, *values, **params)

    mlir.register_lowering(primitive, rule, cacheable=False)


def initialized_platforms() -> frozenset[str]:
    """The platforms that have devices in this process, none before jax has looked for any."""
    return frozenset(backends()) if backends_are_initialized() else frozenset()


def transpose_source(value: Any) -> tuple[Any, tuple[int, ...]] | None:
    """The operand and permutation of the transpose that produced an MLIR value, if one did."""
    owner = value.owner
    if not isinstance(owner, ir.Operation | ir.OpView) or owner.operation.name != "stablehlo.transpose":
        return None
    operation = owner.operation
    permutation = ir.DenseI64ArrayAttr(operation.attributes["permutation"])
    return operation.operands[0], tuple(permutation)
