"""docs/programs.md out of the table that `make programs PROGRAMS_JSON=benchmarks/results/cpu/programs.json` records.

python benchmarks/programs.py [benchmarks/results/cpu/programs.json] > docs/programs.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "results" / "cpu" / "programs.json"
SHOWN = (("s2fft", "round trip"), ("lineax", "cg"))
"""Programs whose explanation is printed."""

PAGE = """# Programs that run unmodified

Each program in `tests/programs/` runs natively, through `jo.emulate` and under `jo.enable`, everything with `min_size=0`, and is
compared with an answer that is known (the README says which). Products are counted where they stand in the program: *replaced*,
and *left* native. An error is relative, in the 2-norm, the largest of all results; a time is that of one call after the first, the best of
three. The problems are small, so times show overhead: a CPU emulates for the contract and the bits, not for speed. Rows without
counts under `emulate` look at values while they run, which only `enable` can follow; their products are those of every program that
they lower.

`make programs` prints this table; `make programs PROGRAMS_JSON=benchmarks/results/cpu/programs.json` records it, and
`python benchmarks/programs.py > docs/programs.md` writes this page from the record.

{recorded}

{table}

## What `explain` says

Of two programs in which libraries make the products: `with jo.enable(jo.{enable}, min_size=0) as block: print(block.explain(f, x))`,
equal lines once. None is left native.

{explanations}"""


def recorded(meta: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(meta["packages"].items()) if name != "jax")
    return (
        f"Recorded {meta['date']}: jax_ozaki {meta['version']} (sources {meta['ffi_hash']}), jax {meta['jax']}, Python "
        f"{meta['python']}, {meta['cores']} cores with {meta['cpu']['instructions']}; {packages}. `emulate` under "
        f"`{meta['emulate']}`, the default, `enable` under `{meta['enable']}`."
    )


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| program | emulate: replaced, left | enable: replaced, left | error native | emulated | allowed | ms native | emulated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        counts = [", ".join(map(str, row["products"].get(way, ()))) for way in ("emulate", "enable")]
        way = "emulate" if "emulate" in row["error"] else "enable"
        errors = [f"{x:.0e}" for x in (row["error"]["native"], row["error"][way], row["allowed"])]
        times = [f"{1e3 * row['seconds'][x]:.3g}" for x in ("native", way)]
        lines.append(f"| {' | '.join([row['package'] + ': ' + row['program'], *counts, *errors, *times])} |")
    return "\n".join(lines)


def explanations(rows: list[dict[str, Any]]) -> str:
    by_name = {(row["package"], row["program"]): row["explained"] for row in rows}
    parts = [f"{': '.join(name)}\n\n" + "".join(f"    {line}\n" for line in by_name[name]) for name in SHOWN]
    return "\n".join(parts)


def main() -> None:
    found = json.loads(Path(*sys.argv[1:] or [RECORDED]).read_text())
    meta, rows = found["meta"], sorted(found["rows"], key=lambda row: row["package"])
    page = PAGE.format(
        recorded=recorded(meta), table=table(rows), explanations=explanations(rows), enable="Contract." + meta["enable"]
    )
    print(page, end="")


if __name__ == "__main__":
    main()
