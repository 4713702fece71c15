"""What ncu profiles: the stages of pipelines, each once, after it has run before.

python -m jax_ozaki._bench.workload N MODULI METHOD...
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp

from . import driver
from .operands import Shape, operands
from .pipelines import Pipeline
from .unavailable import Unavailable


def main(size: int, moduli: int, names: list[str]) -> None:
    """Print the name of every stage as it starts."""
    if jax.default_backend() != "gpu":
        raise Unavailable(f"profiling needs an NVIDIA GPU, and jax runs on {jax.default_backend()} here")
    shape = Shape(size, size, size)
    a, b = operands(shape, phi=0.5)
    marker, x = jax.jit(jnp.cos), jnp.ones(1024)
    jax.block_until_ready(marker(x))
    for name in names:
        pipeline = Pipeline.of(name, moduli, shape)  # type: ignore[arg-type]
        variants = pipeline.variants(pipeline.compiled(), a, b)
        for stage, variant in variants.items():
            if name != names[0] and stage.startswith("quantize"):
                continue  # the same kernels as before
            jax.block_until_ready(variant.call())
            driver.call("cuProfilerStart")
            print(f"stage {name} {stage}", flush=True)
            jax.block_until_ready(marker(x))
            jax.block_until_ready(variant.call())
            driver.call("cuProfilerStop")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    except Unavailable as error:
        raise SystemExit(str(error)) from None
