"""SP2 purification of a dense density matrix, end to end: the same function natively and through emulate.

    python benchmarks/purification.py --output benchmarks/results/h200/purification.json [--sizes 4096 8192]

``ms`` is the median time of whole purifications, ``ratio`` the native time over it, ``difference`` that of the
energies from the native one. ``rungs`` are the shares of the outputs of the last product, P P, that each rung of a
certified contract gave.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jax_ozaki as jo
from compiling import compile_all
from jax_ozaki import Contract
from jax_ozaki._bench.timing import Variant, take_turns
from jax_ozaki._cli.purification import Purified, purify
from records import machine, save

CONTRACTS = (Contract.normwise(2), Contract.componentwise("sqrt_k"))


@partial(jax.jit, static_argnums=0)
def hamiltonian(n: int) -> Array:
    """A dimerised ring, its gap wide, in a basis that is a little mixed: dense, and decaying off the ring."""
    bonds = jnp.where(jnp.arange(n) % 2 == 0, 1.0, 0.5)
    ring = jnp.roll(jnp.diag(bonds), 1, axis=1)
    # An element and its mirror image are sums of the same two numbers: symmetric to the bit.
    half = ring + jnp.triu(jax.random.normal(jax.random.key(0), (n, n)) * (0.02 / n**0.5))
    return half + half.T


def measure(n: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    h, solve = hamiltonian(n), partial(purify, occupied=n // 2)
    programs = [solve, *(jo.emulate(solve, contract) for contract in CONTRACTS)]
    variants = [Variant(partial(jax.jit(program), h)) for program in programs]
    compile_all(variants[:1], variants[1:])
    found: list[Purified] = [variant.call() for variant in variants]
    take_turns(variants, seconds=options.seconds, rounds=options.rounds)
    energies = [float(x.energy[int(x.iterations)]) for x in found]
    rows = []
    for contract, variant, result, energy in zip((None, *CONTRACTS), variants, found, energies, strict=True):
        row: dict[str, Any] = {
            "method": "jax_ozaki.emulate" if contract else "jax.numpy",
            "contract": str(contract or Contract.native()),
            "dtype": "float64",
            **dict.fromkeys("mnk", n),
            "batch": 1,
            "iterations": int(result.iterations),
            "ms": variant.median,
            "ratio": variants[0].median / variant.median,
            "energy": energy,
            "difference": energy - energies[0],
        }
        if contract and contract.certified:
            p = result.density
            rungs = np.asarray(jo.dot(p, p, contract=contract, return_report=True)[1].rungs)
            row["rungs"] = (rungs / rungs.sum()).tolist()
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn, after half of that to warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    meta = machine()
    rows: list[dict[str, Any]] = []
    for n in options.sizes:
        rows += measure(n, options)
        save(options.output, meta, rows)
    for row in rows:
        rungs = " ".join(f"{100 * share:.4g}%" for share in row.get("rungs", ()))
        print(
            f"{row['n']:6d} {row['contract']:22} {row['iterations']:3d} steps {row['ms']:9.1f} ms {row['ratio']:6.3f}"
            f" energy {row['energy']:.10f} {row['difference']:+.1e}  {rungs}"
        )


if __name__ == "__main__":
    main()
