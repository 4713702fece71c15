"""Kernels that exist for comparison only, in the module ``_ablation`` of builds that were asked for it."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .. import _ffi, _moduli
from .._plan import padded
from .unavailable import Unavailable

HOW = "built with the CMake option JAX_OZAKI_ABLATION=ON only"


@cache
def require() -> None:
    """Register the kernels' targets; Unavailable where this build has none, or no GPU is there to run them."""
    if jax.default_backend() != "gpu":
        raise Unavailable(f"this kernel needs an NVIDIA GPU, and jax runs on {jax.default_backend()} here")
    try:
        module = importlib.import_module("jax_ozaki._ablation")
    except ModuleNotFoundError:
        raise Unavailable(f"this kernel is {HOW}") from None
    if module.build_info()["ffi_hash"] != _ffi.build_info()["ffi_hash"]:
        raise Unavailable("the module _ablation was built from other sources than the package")
    for name, handler in module.registrations().items():
        jax.ffi.register_ffi_target(name, handler, platform="CUDA", api_version=1)


def _call(name: str, shape: tuple[int, ...], dtype: Any, *operands: Array) -> Array:
    return jax.ffi.ffi_call(f"jax_ozaki.ablation.{name}.v1", jax.ShapeDtypeStruct(shape, dtype))(*operands)


def full_fused(lhs: Array, rhs: Array, lhs_scale: Array, rhs_scale: Array, a: Array, b: Array) -> Array:
    """From residues, scales and operands [batch, m, k], [batch, k, n] to the product."""
    return _call("full_fused", (*a.shape[:-1], b.shape[-1]), jnp.float64, lhs, rhs, lhs_scale, rhs_scale, a, b)


def local_prologue(a: Array, b: Array, lhs_scale: Array, rhs_scale: Array, *, moduli: int) -> Array:
    """From operands and scales to what ``combine`` reads."""
    batch, m, _ = a.shape
    return _call("local_prologue", (batch, moduli, m, padded(b.shape[-1])), jnp.uint8, a, b, lhs_scale, rhs_scale)


def mma_sync(lhs: Array, rhs: Array, *, partial_crt: bool) -> Array:
    """``grouped_mma`` by the instruction of the kernels above."""
    batch, moduli, m, _ = lhs.shape
    planes = -(-moduli // _moduli.GROUP_SIZE) if partial_crt else moduli
    dtype = jnp.uint32 if partial_crt else jnp.uint8
    return _call("mma_sync", (batch, planes, m, padded(rhs.shape[2])), dtype, lhs, rhs)
