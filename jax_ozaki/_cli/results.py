"""``results``: tables of what ``bench`` and ``profile`` wrote, and whether two runs agree."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jax_ozaki._bench import results, tables
from jax_ozaki._bench.agreement import LEAST, agreement
from jax_ozaki._bench.methods import LeftOut
from jax_ozaki._bench.operands import Shape
from jax_ozaki._cli.common import Failure, InputError, reason


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "results",
        help="print the tables of bench and profile, compare two runs",
        description="Print the tables of a file that bench --json or profile --json wrote. With a second file of bench, "
        "compare the runs instead: exit status 1 where a time differs by more than the larger of the rows' spreads and "
        f"{LEAST:.0%}. Rows that one run lacks, as a spent budget leaves them out, are named.",
    )
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("again", type=Path, nargs="?", metavar="AGAIN.json", help="another run of the same benchmark")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")


def main(args: argparse.Namespace) -> int:
    found = _read(args.results)
    if args.again is not None:
        return _compare(args.results, found, args.again, _read(args.again))
    meta = found["meta"]
    if found["schema"] == results.PROFILE_SCHEMA:
        blocks, head, left_out = [tables.of_kernels(meta, found["kernels"])], [], []
    else:
        blocks, head = tables.of_rows(found["rows"]), tables.head(meta)
        shapes = {str(Shape(row["m"], row["n"], row["k"], row["batch"])) for row in found["rows"]}
        left_out = tables.left_out([LeftOut(**x) for x in found["left_out"]], shapes)
    lines = "\n\n".join("\n".join(table.markdown() if args.markdown else table.text()) for table in blocks)
    print("\n\n".join(filter(None, ("\n".join(head), lines))))
    if left_out:
        print("\nleft out:\n" + "\n".join(f"- {line}" if args.markdown else f"  {line}" for line in left_out))
    return 0


def _read(path: Path) -> results.Results:
    try:
        return results.read(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {reason(error)}") from error


def _compare(first: Path, ours: results.Results, second: Path, others: results.Results) -> int:
    if results.PROFILE_SCHEMA in (ours["schema"], others["schema"]):
        raise InputError("two files of bench are needed: a profile has no spread")
    of = agreement(ours, others)
    agreeing = of.timed - len(of.differences)
    print(
        f"{first} and {second}: {agreeing} of {of.timed} times agree within their spread, at least {LEAST:.0%}; "
        f"{of.same_errors} of {of.rows} rows have equal errors"
    )
    for line in (*map(str, of.differences), *(f"in one run only: {name}" for name in of.only_one)):
        print(f"  {line}")
    if of.differences:
        raise Failure("the runs do not agree")
    return 0
