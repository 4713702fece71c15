"""Speed, tracing overhead and memory of emulated float64 products on the CPU, beside jnp.dot in the same process.

python benchmarks/cpu.py [--sizes 512 1024 2048] [--contract "moduli(15)"] [--repeats 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import jax_ozaki as jo


def random_matrix(rng: np.random.Generator, n: int) -> jax.Array:
    """(rand - 0.5) exp(randn / 2) with random row and column factors: off every 2^-53 grid."""
    a = (rng.random((n, n)) - 0.5) * np.exp(0.5 * rng.standard_normal((n, n)))
    return jnp.asarray(a * rng.uniform(1, 2, (n, 1)) * rng.uniform(1, 2, (1, n)))


def median_times(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each function, taken in turns after one warm-up."""
    times: list[list[float]] = [[] for _ in functions]
    for run in range(repeats + 1):
        for function, of_function in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function())
            if run:
                of_function.append(time.perf_counter() - start)
    return [statistics.median(x) for x in times]


def speed(sizes: list[int], contract: jo.Contract, repeats: int) -> None:
    rng = np.random.default_rng(1)
    native, emulated = jax.jit(jnp.dot), jax.jit(partial(jo.dot, contract=contract))
    print(f"{'n':>6} {'jnp.dot':>10} {contract!s:>14} {'slower by':>10} {'planned MiB':>12} {'compiled MiB':>13}")
    for n in sizes:
        a, b = random_matrix(rng, n), random_matrix(rng, n)
        t_native, t_emulated = median_times([partial(native, a, b), partial(emulated, a, b)], repeats)
        memory = emulated.lower(a, b).compile().memory_analysis()
        temporary = memory.temp_size_in_bytes / 2**20 if memory else float("nan")
        planned = jo.plan(n, n, n, contract=contract).workspace_bytes / 2**20
        ms = 1e3
        print(
            f"{n:6d} {t_native * ms:8.1f}ms {t_emulated * ms:12.1f}ms {t_emulated / t_native:9.2f}x"
            f" {planned:12.1f} {temporary:13.1f}"
        )


def tracing(repeats: int) -> None:
    """Time to trace one product in a fresh function, in a chain of products of new shapes."""

    def chain(dot: Callable[..., jax.Array], sizes: list[int]) -> Callable[[], object]:
        arrays = [jax.ShapeDtypeStruct((m, k), jnp.float64) for m, k in pairwise(sizes)]

        def multiply(*matrices: jax.Array) -> jax.Array:
            product = matrices[0]
            for matrix in matrices[1:]:
                product = dot(product, matrix)
            return product

        return lambda: jax.jit(lambda *x: multiply(*x)).trace(*arrays)

    for what, fresh in (("shapes seen before", False), ("new shapes", True)):
        times: dict[str, list[float]] = {"jnp.dot": [], "jo.dot": []}
        for run in range(repeats + 1):
            for i, (name, dot) in enumerate((("jnp.dot", jnp.dot), ("jo.dot", jo.dot))):
                offset = 1000 * run + 100 * i if fresh else 0
                trace = chain(dot, [3 + offset + i for i in range(41)])
                start = time.perf_counter()
                trace()
                if run:
                    times[name].append((time.perf_counter() - start) / 39)
        native, emulated = (statistics.median(x) for x in times.values())
        print(
            f"tracing, {what}: jnp.dot {native * 1e6:.0f} us, jo.dot {emulated * 1e6:.0f} us a product, "
            f"{emulated / native:.2f}x"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--contract", type=jo.Contract.parse, default=jo.Contract.moduli(15))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    speed(options.sizes, options.contract, options.repeats)
    tracing(options.repeats)


if __name__ == "__main__":
    main()
