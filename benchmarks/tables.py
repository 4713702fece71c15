"""The tables of README, docs/performance.md and NOTES.md that are made from recorded results.

    python benchmarks/tables.py [--results benchmarks/results/h200] [--write]

A table follows a line `<!-- table: NAME -->` in one of the documents. Without ``--write`` the tables are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/performance.md", "benchmarks/NOTES.md")
MARKED = re.compile(r"(<!-- table: (\w+) -->\n)(?:\|.*\n)*")

PHI = 0.5
STAGES_SIZE, STAGES_CONTRACT = 4096, "moduli(14)"
PIPELINES = ("grouped", "partial-crt", "staged", "grouped-sync", "partial-crt-sync", "full-fused", "local-prologue")
CONTRACTS = ("componentwise(sqrt_k)", "moduli(14)", "moduli(15)", "mantissa(53)", "normwise(2)")
FUSED = ("grouped-sync grouped_mma", "partial-crt-sync grouped_mma", "full-fused full_fused")

Row = dict[str, Any]
Cells = Sequence[str]


class Results:
    """The recorded files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def rows(self, name: str, **named: Any) -> list[Row]:
        """Rows of NAME.json whose columns have these values."""
        found = json.loads((self._directory / f"{name}.json").read_text())
        rows: list[Row] = found["kernels"] if "kernels" in found else found["rows"]
        return [row for row in rows if all(row[key] == value for key, value in named.items())]


def markdown(header: Cells, lines: Iterable[Cells]) -> str:
    cells = [header, ["---"] * len(header), *lines]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) + "\n" for line in cells)


def three(x: float) -> str:
    """Three digits, or all before the point."""
    return f"{x:.{max(0, 2 - math.floor(math.log10(x)))}f}"


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def by_size(rows: list[Row], column: str, sizes: Iterable[int], form: Callable[[float], str] = three) -> list[str]:
    """A cell a size, empty where it was not run."""
    found = {row["n"]: row[column] for row in rows}
    return ["" if found.get(n) is None else form(found[n]) for n in sizes]


def ratios(rows: list[Row], sizes: Iterable[int]) -> list[str]:
    return by_size(rows, "ratio", sizes, "{:.2f}".format)


def user_rows(results: Results, contract: str, phi: float = PHI) -> list[Row]:
    """A contract as a user calls it."""
    return [row for row in results.rows("bench", contract=contract, phi=phi) if row["method"] in ("fast", "contract")]


def speed(results: Results) -> str:
    """Ratios to native by contract and size."""
    sizes = [row["n"] for row in results.rows("bench", method="native", phi=PHI)]
    title = {CONTRACTS[0]: '`componentwise("sqrt_k")`, the default'}
    lines = [
        [title.get(contract, f"`{contract}`"), *ratios(user_rows(results, contract), sizes)] for contract in CONTRACTS
    ]
    complex_rows = results.rows("speed", dtype="complex128", contract="moduli(15)")
    title_of_complex = "complex128, `moduli(15)`, more accurate than native"
    lines.append([title_of_complex, *ratios(complex_rows, sizes)])
    return markdown(["contract", *map(str, sizes)], lines)


def times(results: Results) -> str:
    """Native times and ratios, the default contract by phi."""
    native = results.rows("bench", method="native", phi=PHI)
    sizes = [row["n"] for row in native]
    lines = [["native, ms", *by_size(native, "ms", sizes)]]
    for contract in CONTRACTS[1:]:
        lines.append([contract, *ratios(user_rows(results, contract), sizes)])
    for phi in sorted({row["phi"] for row in results.rows("bench", contract=CONTRACTS[0])}):
        rows = user_rows(results, CONTRACTS[0], phi)
        lines.append([f'componentwise("sqrt_k"), phi = {phi:g}', *ratios(rows, sizes)])
    return markdown(["contract", *map(str, sizes)], lines)


def stages(results: Results) -> str:
    """Where the time of each pipeline goes."""
    lines = []
    for name in PIPELINES:
        for row in results.rows("bench", method=name, contract=STAGES_CONTRACT, n=STAGES_SIZE, phi=PHI):
            found = {stage: three(ms) for stage, ms in row["stages_ms"].items()}
            before = [stage for stage in found if stage.startswith(("quantize", "stats"))]
            note = " (statistics)" if "stats_lhs" in found else ""
            multiply = [stage for stage in found if stage not in (*before, "combine")]
            ms = [", ".join(found[x] for x in before) + note, " + ".join(found[x] for x in multiply)]
            lines.append([f"`{name}`", *ms, found.get("combine", ""), three(row["ms"])])
    return markdown(["", "quantize lhs, rhs", "multiply", "combine", "whole product, ms"], lines)


def fusion(results: Results) -> str:
    """What the kernels that fuse need, and get."""
    lines = [
        [
            f"`{kernel['stage'].split()[0]}`",
            f"{kernel['shared_bytes'] / 1024:.0f} KiB",
            f"{kernel['registers']:.0f}",
            f"{kernel['eligible_warps']:.2f}",
            f"{kernel['tensor']:.0f}%",
            f"{kernel['duration_us'] / 1e3:.2f}",
        ]
        for stage in FUSED
        for kernel in results.rows("profile", stage=stage)
    ]
    header = [
        "",
        "shared memory a CTA",
        "registers",
        "eligible warps a scheduler",
        "tensor pipe",
        "time of the kernel, ms",
    ]
    return markdown(header, lines)


def kernels(results: Results) -> str:
    """Kernels alone: ms, and the share of the copy rate or TOPS."""
    lines = []
    for row in results.rows("speed", dtype="float64", contract=STAGES_CONTRACT):
        if row["n"] < STAGES_SIZE or not row["stages_ms"]:
            continue
        share = {name: f"{rate / row['copy_gbs']:.0%}" for name, rate in row["stages_gbs"].items()}
        share["grouped_mma"] = f"{row['mma_tops']:.0f}"
        names = ("stats", "quantize_lhs", "quantize_rhs", "grouped_mma", "combine")
        lines.append([str(row["n"]), *(f"{three(row['stages_ms'][name])} ({share[name]})" for name in names)])
    header = ["n", "statistics (columns)", "quantize rows", "quantize columns, statistics included", "grouped_mma"]
    return markdown([*header, "combine"], lines)


def certified(results: Results) -> str:
    """The default contract by kind of data."""
    rows = results.rows("certified")
    sizes = sorted({row["n"] for row in rows})
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        of_data = [row for row in rows if row["data"] == data]
        over = [
            " / ".join(cell or "not run" for cell in by_size(of_data, column, sizes, "{:.2f}".format))
            for column in ("over_moduli", "over_native")
        ]
        rungs = ", ".join(map(percent, of_data[0]["rungs"]))
        lines.append([data, str(of_data[0]["moduli"]), *over, rungs])
    where = " / ".join(map(str, sizes))
    return markdown(
        ["data", "moduli", f"over moduli(15), {where}", "over native", f"rungs 1, 2, 3, 4 at {sizes[0]}"], lines
    )


def purification(results: Results) -> str:
    """Whole purifications."""
    lines = [
        [
            str(row["n"]),
            row["contract"],
            str(row["iterations"]),
            three(row["ms"]),
            f"{row['ratio']:.2f}",
            "" if row["contract"] == "native" else f"{row['difference']:.0e}",
            ", ".join(map(percent, row.get("rungs", ()))),
        ]
        for row in results.rows("purification")
    ]
    header = ["n", "contract", "steps", "ms", "native / t", "energy - native", "rungs of the last product"]
    return markdown(header, lines)


def symmetric(results: Results) -> str:
    """Products of a matrix with itself."""
    columns = {"two arrays": "x y", "x x, symmetric": "x x, symmetric", "x x, not": "x x", "x x^T": "x x^T"}
    lines = [
        [str(row["n"]), row["contract"], *(f"{three(row['ms'][x])} ({row['ratio'][x]:.2f})" for x in columns.values())]
        for row in results.rows("symmetric")
    ]
    return markdown(["n", "contract", *columns], lines)


TABLES = {
    table.__name__: table for table in (speed, times, stages, fusion, kernels, certified, purification, symmetric)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/h200")
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    options = parser.parse_args()
    results = Results(options.results)
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        if options.write:
            path.write_text(MARKED.sub(lambda found: found[1] + TABLES[found[2]](results), text))
            continue
        for _, table in MARKED.findall(text):
            print(f"{name}: {table}\n\n{TABLES[table](results)}")


if __name__ == "__main__":
    main()
