"""Speed of certified products on a GPU by kind of data, beside moduli(15) and jnp.dot in the same process.

    python benchmarks/certified.py --output benchmarks/results/h200/certified.json
        [--sizes 4096 8192 16384] [--data "phi 0.5" ...] [--seconds 0.1] [--rounds 9]

Times are medians of sustained calls (see timing.py); beyond 4096, where a call takes longer, of half as many turns.
``rungs`` are the shares of outputs that each rung of the ladder gave; ``moduli`` is what the operands of the first
one need.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
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
from jax_ozaki._bench.timing import Variant, Watch, take_turns
from records import machine, save

PLAIN, CERTIFIED, EXACT = Contract.moduli(15), Contract.componentwise("sqrt_k"), Contract.exact()
Pair = tuple[Array, ...]
Programs = dict[tuple[int, str], Callable[..., Any]]
"""By size and name."""
SLOW_SIZE = 4096  # the largest for data of the upper rungs and for exact(), and the largest for every round


@partial(jax.jit, static_argnums=(1, 2))
def spread_matrix(seed: int, n: int, phi: float) -> Array:
    """(rand - 1/2) exp(phi randn), rows off the grid of rand."""
    keys = jax.random.split(jax.random.key(seed), 3)
    spread = jnp.exp(phi * jax.random.normal(keys[1], (n, n)))
    return (
        (jax.random.uniform(keys[0], (n, n)) - 0.5) * spread * jax.random.uniform(keys[2], (n, 1), minval=1, maxval=2)
    )


def ordinary(n: int) -> Pair:
    return random_matrix(1, n), random_matrix(2, n)


def phi(exponent: float) -> Callable[[int], Pair]:
    return lambda n: (spread_matrix(1, n, exponent), spread_matrix(2, n, exponent))


def float32_values(n: int) -> Pair:
    return tuple(x.astype(jnp.float32).astype(jnp.float64) for x in ordinary(n))


def block_diagonal(n: int) -> Pair:
    half = jnp.arange(n) * 2 // n
    return tuple(jnp.where(half[:, None] == half, x, 0) for x in ordinary(n))


def triangular(n: int) -> Pair:
    return tuple(map(jnp.tril, ordinary(n)))


def scaled_inside(n: int) -> Pair:
    """A D and D^-1 B, D powers of two over +-500 bits."""
    a, b = ordinary(n)
    d = 2.0 ** jax.random.randint(jax.random.key(3), (n,), -500, 501)
    return a * d, b / d[:, None]


def random_integers(low: int, high: int) -> Callable[[int], Pair]:
    def operands(n: int) -> Pair:
        x = jax.random.randint(jax.random.key(4), (2, n, n), low, high).astype(jnp.float64)
        return x[0], x[1]

    return operands


DATA: dict[str, Callable[[int], Pair]] = {
    "phi 0.5": ordinary,
    "phi 1": phi(1),
    "float32 values": float32_values,
    "block diagonal": block_diagonal,
    "triangular": triangular,
    "phi 2": phi(2),
    "phi 3": phi(3),
    "A D, D^-1 B": scaled_inside,
}
SLOW = ("phi 3", "A D, D^-1 B")
FEW_BITS = {
    "float64": ordinary,
    "float32 values": float32_values,
    "int16": random_integers(-(2**15), 2**15),
    "int8": random_integers(-128, 128),
    "0 and 1": random_integers(0, 2),
}


def reported(a: Array, b: Array) -> jo.Report:
    return jo.dot(a, b, contract=CERTIFIED, return_report=True)[1]


def contracts(n: int) -> list[Contract]:
    return [PLAIN, CERTIFIED, *([EXACT] if n <= SLOW_SIZE else [])]


def compiled(sizes: list[int]) -> Programs:
    """The programs of each size, whatever the data."""

    def variant(n: int, function: Callable[..., Any]) -> Variant:
        operand = jax.ShapeDtypeStruct((n, n), jnp.float64)
        return Variant(partial(jax.jit(function), operand, operand))

    native = {(n, "jnp.dot"): variant(n, jnp.dot) for n in sizes}
    others = {(n, "report"): variant(n, reported) for n in sizes}
    others |= {(n, str(x)): variant(n, partial(jo.dot, contract=x)) for n in sizes for x in contracts(n)}
    compile_all(native.values(), others.values())
    return {key: of_shapes.call.func for key, of_shapes in (native | others).items()}


def measure(name: str, operands: Pair, programs: Programs, options: argparse.Namespace) -> Any:
    """One row: times of every contract, and what the certified one did."""
    n = len(operands[0])
    timed = [str(contract) for contract in contracts(n) if contract is not EXACT or name == "phi 0.5"]
    variants = {x: Variant(partial(programs[n, x], *operands)) for x in (*timed, "jnp.dot")}
    rounds = options.rounds if n <= SLOW_SIZE else -(-options.rounds // 2)
    with Watch() as watch:
        take_turns(list(variants.values()), seconds=options.seconds, rounds=rounds)
    report = programs[n, "report"](*operands)
    ms = {key: variant.median for key, variant in variants.items()}
    certified = ms[str(CERTIFIED)]
    return {
        "data": name,
        "n": n,
        "ms": ms,
        "spread": {key: variant.spread for key, variant in variants.items()},
        "turns": rounds,
        "over_moduli": certified / ms[str(PLAIN)],
        "over_native": certified / ms["jnp.dot"],
        "moduli": int(report.moduli),
        "rungs": [count / n**2 for count in report.rungs.tolist()],
        "achieved": float(report.achieved),
        **watch.summary(),
    }


def print_row(row: dict[str, Any]) -> None:
    times = "  ".join(f"{name} {ms:9.3f}" for name, ms in row["ms"].items())
    rungs = " ".join(f"{share:8.4%}" for share in row["rungs"])
    print(
        f"{row['n']:6d} {row['data']:15} {row['moduli']:2d} moduli  ms: {times}   / moduli(15) {row['over_moduli']:7.3f}"
        f"  / native {row['over_native']:7.3f}   rungs {rungs}",
        flush=True,
    )


def few_bits(n: int, report: Callable[..., jo.Report]) -> dict[str, int]:
    """The moduli that the first rung multiplies, by the kind of elements."""
    return {name: int(report(*make(n)).moduli) for name, make in FEW_BITS.items()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn, after half of that to warm up")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    options = parse()
    jax.config.update("jax_enable_x64", True)
    programs = compiled(options.sizes)
    smallest = min(options.sizes)
    moduli = few_bits(smallest, programs[smallest, "report"])
    meta = machine() | {"seconds": options.seconds, "rounds": options.rounds, "moduli": moduli}
    print(meta, flush=True)
    rows = []
    for n in options.sizes:
        for name in options.data:
            if name in SLOW and n > SLOW_SIZE:
                continue
            rows.append(measure(name, DATA[name](n), programs, options))
            print_row(rows[-1])
            save(options.output, meta, rows)


if __name__ == "__main__":
    main()
