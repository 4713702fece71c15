"""``profile``: what the kernels of a product are bound by, from NVIDIA Nsight Compute."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from jax_ozaki import _ffi
from jax_ozaki._bench import ncu
from jax_ozaki._bench.pipelines import NAMES, Name
from jax_ozaki._cli.common import Failure, check_output, replacing

DEFAULT: tuple[Name, ...] = ("grouped", "partial-crt")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="profile the kernels of a product with ncu",
        description="Run NVIDIA Nsight Compute on every stage of one square product, and say what bounds each kernel. "
        "Needs an NVIDIA GPU, ncu, and the right to read performance counters.",
    )
    parser.add_argument("--size", type=int, default=4096, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--moduli", type=int, default=14, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--methods", nargs="+", choices=NAMES, default=list(DEFAULT), help=f"(default: {' '.join(DEFAULT)})"
    )
    parser.add_argument("--ncu", default="ncu", metavar="PATH", help="the profiler (default: the one on PATH)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE, with full kernel names")


def main(args: argparse.Namespace) -> int:
    if args.json is not None:
        check_output(args.json, (".json",))
    try:
        launches, stages = ncu.run(args.ncu, [str(args.size), str(args.moduli), *args.methods])
        kernels = [
            {"stage": stage, "kernel": launch.kernel, **(found := ncu.values(launch)), "sentence": ncu.sentence(found)}
            for stage, launch in ncu.by_stage(launches, stages)
        ]
    except ncu.ProfilerError as error:
        raise Failure(str(error)) from error
    ffi_hash = _ffi.build_info()["ffi_hash"]
    print(f"n = {args.size}, {args.moduli} moduli, ffi hash {ffi_hash}\n")
    print("\n".join(table(kernels)))
    if args.json is not None:
        meta = {"n": args.size, "moduli": args.moduli, "ffi_hash": ffi_hash}
        with replacing(args.json) as file:
            file.write((json.dumps({"meta": meta, "kernels": kernels}, indent=1) + "\n").encode())
    return 0


def table(kernels: list[dict[str, Any]]) -> list[str]:
    """A line a kernel, then its sentence."""
    form = "{:26}{:30}" + "{:>10}" * len(ncu.COLUMNS)
    columns = ncu.COLUMNS.values()
    lines = [form.format("stage", "kernel", *(column.title for column in columns)).rstrip()]
    lines.append(form.format("", "", *(column.unit for column in columns)).rstrip())
    for kernel in kernels:
        cells = (kernel[name] for name in ncu.COLUMNS)
        numbers = ["-" if x is None else f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in cells]
        lines.append(form.format(kernel["stage"], ncu.short_name(kernel["kernel"])[:29], *numbers))
        lines.append(f"    {kernel['sentence']}")
    return lines
