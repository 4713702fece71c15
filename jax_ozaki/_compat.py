"""Everything that jax does not export publicly, in one place.

A new jax release is adopted by making this file work; nothing else imports ``jax._src``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax._src import linear_util as lu
from jax._src import source_info_util
from jax._src.api_util import debug_info
from jax._src.config import _check_vma
from jax._src.core import extend_axis_env_nd, pvary_p, trace_state_clean
from jax._src.custom_batching import custom_vmap_p
from jax._src.dispatch import apply_primitive, prim_requires_devices_during_lowering
from jax._src.effects import no_effects
from jax._src.interpreters.batching import get_sharding_for_vmap as mapped_sharding
from jax._src.interpreters.mlir import _lowerings, _platform_specific_lowerings, lower_per_platform
from jax._src.interpreters.mlir import lower_with_sharding_in_types as annotate_sharding
from jax._src.interpreters.partial_eval import TracebackScope, trace_to_jaxpr_dynamic
from jax._src.lax.control_flow.solves import linear_solve_p as custom_linear_solve_p
from jax._src.lax.lax import _convert_element_type as convert_element_type
from jax._src.lax.linalg import symmetric_product_p
from jax._src.mesh import thread_resources
from jax._src.sharding_impls import ShardingContext, UnspecifiedValue
from jax._src.xla_bridge import backends_are_initialized
from jax.extend.backend import backends
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from jax.extend.core.primitives import (
    cond_p,
    custom_jvp_call_p,
    custom_vjp_call_p,
    dot_general_p,
    jit_p,
    remat_p,
    scan_p,
    while_p,
)
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import ir

__all__ = [
    "INLINE",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "TracebackScope",
    "Var",
    "ad",
    "add_call_constants",
    "add_scan_constants",
    "allow_partitioning",
    "annotate_sharding",
    "batching",
    "cond_p",
    "convert_element_type",
    "custom_jvp_call_p",
    "custom_linear_solve_p",
    "custom_vjp_call_p",
    "custom_vmap_p",
    "dot_general_p",
    "evaluate_eagerly",
    "has_shardings",
    "initialized_platforms",
    "is_tracing",
    "jit_p",
    "knows_mesh",
    "mapped_sharding",
    "mesh_of_rules",
    "mlir",
    "module_products",
    "override_lowering",
    "package_flags",
    "pvary_p",
    "register_lowering",
    "remat_p",
    "scan_constants",
    "scan_p",
    "site_of",
    "symmetric_product_p",
    "trace",
    "transpose_source",
    "user_frame",
    "while_p",
    "wrapped",
    "zeros_of",
]


INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True
"""The ``inline`` of a jitted function that leaves no call in the caller's jaxpr."""


def trace(fn: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr of ``fn`` for arguments of exactly these avals."""
    wrapped = lu.wrap_init(fn, debug_info=debug_info("jax_ozaki", fn, avals, {}))
    jaxpr, _, consts = trace_to_jaxpr_dynamic(wrapped, avals)
    return ClosedJaxpr(jaxpr, consts)


@contextmanager
def site_of(equation: JaxprEqn) -> Iterator[None]:
    """What ``equation`` was traced under: its context, and within shard_map, where its operands vary over manual axes,
    their types."""
    arrays = [x.aval for x in equation.invars if isinstance(x.aval, jax.core.ShapedArray)]  # a token has no such type
    varies = any(x.manual_axis_type.varying for x in arrays)
    with equation.ctx.manager, _check_vma(_check_vma.value or varies):
        yield


def zeros_of(aval: Any) -> Array:
    """Zeros of exactly this type, the manual axes over which it varies included."""
    zeros, varying = jnp.zeros(aval.shape, aval.dtype), tuple(sorted(aval.manual_axis_type.varying))
    if not varying:
        return zeros
    with extend_axis_env_nd([(axis, aval.sharding.mesh.shape[axis]) for axis in varying]):
        return lax.pcast(zeros, varying, to="varying")


def wrapped(fn: Callable[..., Any], like: Any) -> Any:
    """``fn`` in the wrapping that jax keeps custom rules in."""
    return lu.wrap_init(fn, debug_info=like.debug_info)


def user_frame(equation: JaxprEqn) -> str:
    """Where the program asked for ``equation``: file:line (function); empty where no line is the program's own."""
    return source_info_util.summarize(equation.source_info)


def has_shardings(jit_params: dict[str, Any]) -> bool:
    """Whether a jit equation says where its arguments or results lie."""
    return any(not isinstance(x, UnspecifiedValue) for key in _SHARDINGS for x in jit_params[key])


_SHARDINGS = ("in_shardings", "out_shardings")


def scan_constants(params: dict[str, Any]) -> int:
    """How many leading operands of a scan are constants."""
    return params["num_consts"] if "num_consts" in params else len(params["ft_in"].unpack()[0])


def add_scan_constants(params: dict[str, Any], count: int) -> dict[str, Any]:
    """The parameters of a scan with ``count`` more constants."""
    if "num_consts" in params:
        return params | {"num_consts": params["num_consts"] + count}
    flattree = importlib.import_module("jax._src.flattree")  # newer than the oldest jax

    constants, carry, xs = params["ft_in"].unpack()
    return params | {"ft_in": flattree.pack((flattree.nones(len(constants) + count), carry, xs))}


def add_call_constants(params: dict[str, Any], count: int) -> dict[str, Any]:
    """The parameters of a call with custom derivatives with ``count`` more constants, which its rules do not see."""
    more = params | {"num_consts": params["num_consts"] + count}
    if "out_trees" not in params:
        return more

    def out_trees() -> Any:
        # Residuals that are operands are named by their position.
        *trees, forwarded = params["out_trees"]()
        return (*trees, [x if x is None else x + count for x in forwarded])

    return more | {"out_trees": out_trees}


def evaluate_eagerly(primitive: Primitive) -> None:
    """Give ``primitive`` the standard implementation: compile it alone and run it."""
    primitive.def_impl(partial(apply_primitive, primitive))


@contextmanager
def package_flags() -> Iterator[None]:
    """The flags that the package's own arithmetic is traced under, whatever those of the program are."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


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


def override_lowering(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Lower ``primitive`` by ``rule(original, ctx, *values, **params)``, ``original`` being the platform's rule."""
    for platform, rules in [(None, _lowerings), *_platform_specific_lowerings.items()]:
        if primitive in rules:
            entry = rules[primitive]
            mlir.register_lowering(primitive, partial(rule, entry.rule), platform=platform, inline=entry.inline)


def is_tracing() -> bool:
    """Whether a transformation of jax is running in this thread."""
    return not trace_state_clean()


def knows_mesh(ctx: Any) -> bool:
    """Whether a lowering was told its devices and their mesh, as custom_partitioning needs.

    It is not within a primitive that creates products when it is lowered, nor where no array is sharded. A program
    of one device has none, and is lowered once, not for a rule and again.
    """
    context = ctx.module_context.axis_context
    if not isinstance(context, ShardingContext):
        return True
    if context.device_assignment is None:
        return False
    return context.abstract_mesh is not None or not thread_resources.env.physical_mesh.empty


def initialized_platforms() -> frozenset[str]:
    """The platforms that have devices in this process, none before jax has looked for any."""
    return frozenset(backends()) if backends_are_initialized() else frozenset()


def module_products(module: Any) -> list[tuple[Any, ...]]:
    """The floating-point dot_generals of a lowered module: avals of lhs, rhs and result, dimension numbers, place."""
    found: list[tuple[Any, ...]] = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.dot_general":
            values = (*operation.operands, *operation.results)
            types = [ir.RankedTensorType(value.type) for value in values]
            if all(str(x.element_type) in _FLOATS for x in types):
                lhs, rhs, out = (jax.ShapeDtypeStruct(tuple(x.shape), _FLOATS[str(x.element_type)]) for x in types)
                numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
                contracting = tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)
                batching = tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)
                found.append((lhs, rhs, out, (contracting, batching), _place(str(operation.location))))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


_FLOATS = {"f32": "float32", "f64": "float64", "complex<f32>": "complex64", "complex<f64>": "complex128"}


def _place(location: str) -> str:
    """file:line (scope) of an MLIR location; empty where it has no line."""
    scope = re.search(r'loc\("([^"]*)"', location)
    line = re.search(r'"([^"]+)":(\d+)', location)
    return f"{line[1]}:{line[2]} ({scope[1]})" if scope and line else ""


def transpose_source(value: Any) -> tuple[Any, tuple[int, ...]] | None:
    """The operand and permutation of the transpose that produced an MLIR value, if one did."""
    owner = value.owner
    if not isinstance(owner, ir.Operation | ir.OpView) or owner.operation.name != "stablehlo.transpose":
        return None
    operation = owner.operation
    permutation = ir.DenseI64ArrayAttr(operation.attributes["permutation"])
    return operation.operands[0], tuple(permutation)
