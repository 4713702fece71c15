"""Products of a matrix with itself on a GPU, symmetric and not, beside two arrays and jnp.dot in the same process.

    python benchmarks/symmetric.py --output benchmarks/results/h200/symmetric.json
        [--sizes 2048 4096 8192 16384] [--seconds 0.1] [--rounds 5]

``ms`` are medians of sustained calls (see timing.py), ``ratio`` the time of jnp.dot over them. Of ``x y`` the operands
are two arrays; ``x x`` is measured with a symmetric x and with one that is not.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import jax_ozaki as jo
from compiling import compile_all
from gpu import random_matrix
from jax_ozaki import Contract
from jax_ozaki._bench.timing import Variant, take_turns
from records import machine, save

CONTRACTS = (Contract.moduli(14), Contract.componentwise("sqrt_k"))


@jax.jit
def mirrored(x: Array) -> Array:
    """The symmetric matrix with the upper half of x."""
    return jnp.triu(x) + jnp.triu(x, 1).T


def measure(n: int, contract: Contract, options: argparse.Namespace) -> dict[str, Any]:
    x, y = random_matrix(1, n), random_matrix(2, n)
    symmetric = mirrored(x)
    multiply = partial(jo.dot, contract=contract)
    square = jax.jit(lambda x: multiply(x, x))
    variants = {
        "jnp.dot": Variant(partial(jax.jit(jnp.dot), x, y)),
        "x y": Variant(partial(jax.jit(multiply), x, y)),
        "x x, symmetric": Variant(partial(square, symmetric)),
        "x x": Variant(partial(square, x)),
        "x x^T": Variant(partial(jax.jit(lambda x: multiply(x, x.T)), x)),
    }
    compile_all([variants["jnp.dot"]], [variant for name, variant in variants.items() if name != "jnp.dot"])
    take_turns(list(variants.values()), seconds=options.seconds, rounds=options.rounds)
    ms = {name: variant.median for name, variant in variants.items()}
    return {"n": n, "contract": str(contract), "ms": ms, "ratio": {name: ms["jnp.dot"] / x for name, x in ms.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn, after half of that to warm up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    meta = machine() | {"seconds": options.seconds, "rounds": options.rounds}
    rows: list[dict[str, Any]] = []
    for n in options.sizes:
        for contract in CONTRACTS:
            rows.append(measure(n, contract, options))
            save(options.output, meta, rows)
            of_each = "  ".join(f"{name} {rows[-1]['ms'][name]:.3f} ({x:.2f})" for name, x in rows[-1]["ratio"].items())
            print(f"{n:6d} {contract!s:22} {of_each}", flush=True)


if __name__ == "__main__":
    main()
