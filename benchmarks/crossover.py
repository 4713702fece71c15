"""The size from which on `emulate` replaces a product by default, from recorded times of products inside one program.

    python benchmarks/crossover.py [--write]

Reads benchmarks/results/h200/speed.json. It is the smallest n from which on every measured size has both
`mantissa(53)` and `normwise(2)` at the native speed or above, within the 5% by which times scatter. ``--write`` puts it
into jax_ozaki/data/crossover.json, under the name of the device that was measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results/h200/speed.json"
RECORD = ROOT / "jax_ozaki/data/crossover.json"
CONTRACTS = ("mantissa(53)", "normwise(2)")
LEVEL = 0.95
"""Of the native speed: two records of one size differ by as much."""


def found(results: dict[str, Any]) -> dict[str, dict[str, object]]:
    """The entry of the device that was measured. SystemExit where no size has both contracts, or none is fast enough."""
    ratios: dict[int, dict[str, float]] = {}
    for row in results["rows"]:
        if row["contract"] in CONTRACTS and row["dtype"] == "float64" and "ratio_graph" in row:
            ratios.setdefault(row["n"], {})[row["contract"]] = row["ratio_graph"]
    whole = {n: of for n, of in ratios.items() if len(of) == len(CONTRACTS)}
    slow = [n for n, of in whole.items() if min(of.values()) < LEVEL]
    fast = [n for n in whole if n > max(slow, default=0)]
    if not fast:
        raise SystemExit(
            f"{RESULTS} has no size at which {' and '.join(CONTRACTS)} have {LEVEL} of the native speed: {whole}"
        )
    size = min(fast)
    speeds = " and ".join(f"{contract} at {whole[size][contract]:.2f}" for contract in CONTRACTS)
    source = f"{RESULTS}: in a compiled loop {speeds} times the native speed there"
    return {results["meta"]["gpu"]: {"size": size, "source": source}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into the package")
    options = parser.parse_args()
    entry = found(json.loads((ROOT / RESULTS).read_text()))
    print(json.dumps(entry, indent=2))
    if options.write:
        RECORD.write_text(json.dumps(json.loads(RECORD.read_text()) | entry, indent=2) + "\n")


if __name__ == "__main__":
    main()
