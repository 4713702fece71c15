"""The size from which on `emulate` replaces a product by default, from recorded times.

    python benchmarks/crossover.py [--write]

Reads benchmarks/results/h200/speed.json. From there on both `mantissa(53)` and `normwise(2)` have the native speed at
every measured size, inside one program where that was measured. Between two sizes the logarithm of the slower one's
ratio is taken as linear in that of n, since the sizes are far apart: two records give one crossover. ``--write`` puts it
into jax_ozaki/data/crossover.json, under the name of the device that was measured.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results/h200/speed.json"
RECORD = ROOT / "jax_ozaki/data/crossover.json"
CONTRACTS = ("mantissa(53)", "normwise(2)")
STEP = 256
"""Of the sizes that are told apart."""


def found(results: dict[str, Any]) -> dict[str, dict[str, object]]:
    """The entry of the device that was measured. SystemExit where no size has both contracts, or none is fast enough."""
    ratios: dict[int, dict[str, float]] = {}
    for row in results["rows"]:
        if row["contract"] in CONTRACTS and row["dtype"] == "float64":
            ratios.setdefault(row["n"], {})[row["contract"]] = row.get("ratio_graph", row["ratio"])
    slower = {n: min(of.values()) for n, of in ratios.items() if len(of) == len(CONTRACTS)}
    below = max((n for n, ratio in slower.items() if ratio < 1), default=0)
    above = min((n for n in slower if n > below), default=0)
    if not above:
        raise SystemExit(f"{RESULTS} has no size at which {' and '.join(CONTRACTS)} have the native speed: {slower}")
    size, measured = above, [above]
    if below:
        share = math.log(slower[below]) / math.log(slower[below] / slower[above])
        size, measured = max(STEP, STEP * round(below * (above / below) ** share / STEP)), [below, above]
    speeds = ", ".join(f"{slower[n]:.2f} times the native speed at {n}" for n in measured)
    return {results["meta"]["gpu"]: {"size": size, "source": f"{RESULTS}: {' and '.join(CONTRACTS)} at least {speeds}"}}


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
