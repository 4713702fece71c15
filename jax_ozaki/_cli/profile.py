"""``profile``: what the kernels of a product are bound by, from NVIDIA Nsight Compute."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jax_ozaki import _ffi
from jax_ozaki._bench import ncu, results, tables
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
    meta = {"n": args.size, "moduli": args.moduli, "ffi_hash": _ffi.build_info()["ffi_hash"]}
    print("\n".join(tables.of_kernels(meta, kernels).text()))
    if args.json is not None:
        with replacing(args.json) as file:
            file.write(results.encode_profile(meta, kernels))
    return 0
