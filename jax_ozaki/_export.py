"""What ``jax.export`` needs to know."""

from __future__ import annotations

import jax.export

from . import _ffi


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """The ``disabled_checks`` with which ``jax.export`` serialises programs with emulated products.

    jax promises to run a serialised program later only for custom calls that it knows. Those of this package have
    versioned names, the same on every platform: a program runs wherever a package with these versions is imported,
    with the bits of that package. Without ``import jax_ozaki`` XLA finds no such call, and says so.

        exported = jax.export.export(jax.jit(f), disabled_checks=jo.export_checks())(a, b)
    """
    return [jax.export.DisabledSafetyCheck.custom_call(_ffi.target(stage)) for stage in _ffi.CUDA_STAGES]
