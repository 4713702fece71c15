"""Sharded float64 products on the GPUs of one host: bits and times against one GPU and against native products.

    python benchmarks/sharding.py --output benchmarks/results/h200/sharding.json
        [--size 16384] [--contracts "moduli(14)" ...] [--seconds 0.5] [--rounds 3]

Times are medians of sustained runs (see timing.py) of jitted products of operands that lie sharded already.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from gpu import random_matrix
from jax_ozaki import Contract
from jax_ozaki._bench.timing import Variant, take_turns
from records import machine, save

LAYOUTS = {
    "m": (P("x"), P(), P("x")),
    "n": (P(), P(None, "x"), P(None, "x")),
    "k": (P(None, "x"), P("x"), P()),
    "k, result over m": (P(None, "x"), P("x"), P("x")),
}


@jax.jit
def same_bits(x: Array, y: Array) -> Array:
    return jnp.array_equal(jax.lax.bitcast_convert_type(x, jnp.uint64), jax.lax.bitcast_convert_type(y, jnp.uint64))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    devices, n = jax.devices(), options.size
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(AxisType.Auto,))
    one = SingleDeviceSharding(devices[0])
    operands = [jax.device_put(random_matrix(seed, n), one) for seed in (0, 1)]

    def with_variants(contract: Contract, layout: str | None) -> list[Contract]:
        split = layout is not None and layout.startswith("k") and not contract.certified
        return [contract, *([Contract(contract.kind, contract.parameter, False)] if split else [])]

    variants, rows = {}, []
    for layout, (*specs, out) in {None: (one, one, one), **LAYOUTS}.items():
        shardings = [s if layout is None else NamedSharding(mesh, s) for s in (*specs, out)]
        a, b = (jax.device_put(x, s) for x, s in zip(operands, shardings, strict=False))
        products = {"native": jnp.dot}
        for contract in options.contracts:
            products |= {str(c): partial(jo.dot, contract=c) for c in with_variants(contract, layout)}
        for name, product in products.items():
            call = partial(jax.jit(product, out_shardings=shardings[-1]), a, b)
            row = {"method": "native" if name == "native" else "jax_ozaki", "contract": name, "dtype": "float64"}
            row |= {
                "m": n,
                "n": n,
                "k": n,
                "batch": 1,
                "devices": 1 if layout is None else len(devices),
                "layout": layout,
            }
            if name != "native" and layout is not None and Contract.parse(name).reproducible:
                whole = variants[None, name].call()
                row["same_bits"] = bool(same_bits(jax.device_put(call(), one), whole))
            variants[layout, name] = Variant(call)
            rows.append(row)
    take_turns(list(variants.values()), seconds=options.seconds, rounds=options.rounds)
    for row in rows:
        layout, name = row["layout"], row["contract"]
        row["ms"] = variants[layout, name].median
        row["ms_min"] = min(variants[layout, name].ms)
        row["native_ms"] = variants[layout, "native"].median
        whole = variants.get((None, name)) or variants[None, name.replace(", reproducible=False", "")]
        row["one_device_ms"] = whole.median
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", type=int, default=16384)
    contracts = [Contract.componentwise(), Contract.moduli(14)]
    parser.add_argument("--contracts", type=Contract.parse, nargs="+", default=contracts)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = measure(options)
    meta = machine() | {
        "devices": len(jax.devices()),
        "seconds": options.seconds,
        "rounds": options.rounds,
    }
    save(options.output, meta, rows)
    for row in rows:
        print(
            f"{row['layout'] or 'one device':18} {row['contract']:34} {row['ms']:9.2f} ms  native {row['native_ms']:9.2f}"
            f"  one device {row['one_device_ms']:9.2f}  {row.get('same_bits', '')}"
        )


if __name__ == "__main__":
    main()
