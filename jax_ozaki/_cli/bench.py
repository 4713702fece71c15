"""``bench``: speed and accuracy of products, every method under its stated contract."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jaxlib

from jax_ozaki import _ffi
from jax_ozaki._bench import cublas, methods, results, tables
from jax_ozaki._bench.effort import Effort
from jax_ozaki._bench.measure import measure, steps
from jax_ozaki._bench.operands import Shape
from jax_ozaki._bench.timing import query_gpu
from jax_ozaki._bench.unavailable import Unavailable
from jax_ozaki._cli.common import Failure, InputError, check_output, reason, replacing

GPU_SIZES, CPU_SIZES = (1024, 2048, 4096, 8192, 16384), (128, 256, 512)
DTYPES = ("float64",)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure speed and accuracy of products",
        description="Time products in turns under sustained load, compare them with a reference of twice the "
        "precision, and check every output against its method's stated contract: exit status 1 where one is broken.",
        epilog="methods: "
        + "; ".join(f"{name}: {kind.what}" for name, kind in methods.KINDS.items())
        + ". A parameter follows in parentheses, as in 'staged(14)'; a contract is named by itself, as in 'normwise(2)'. "
        "docs/performance.md explains every column.",
    )
    parser.add_argument(
        "--sizes",
        type=_positive,
        nargs="+",
        metavar="N",
        help=f"square products (default on a GPU: {_list(GPU_SIZES)}; else {_list(CPU_SIZES)})",
    )
    parser.add_argument("--shapes", type=_shape, nargs="+", default=[], metavar="m,n,k", help="others: (m, k) x (k, n)")
    parser.add_argument("--batch", type=_positive, default=1, help="products at once (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="(default: %(default)s)")
    parser.add_argument(
        "--methods", nargs="+", default=list(methods.KINDS), metavar="METHOD", help="(default: all, see below)"
    )
    parser.add_argument(
        "--phi",
        type=_phi,
        nargs="+",
        default=[0.5, 0.0, 1.0, 2.0],
        metavar="PHI",
        help="exponent spread of the operands, (rand - 1/2) exp(PHI randn); the first is timed (default: 0.5 0 1 2)",
    )
    parser.add_argument(
        "--seconds",
        type=_duration,
        default=0.05,
        help="of a turn, after half of that to warm up (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=9,
        help="turns of each method; a product that takes longer than a turn has a third of them (default: %(default)s)",
    )
    parser.add_argument(
        "--longest",
        type=_duration,
        default=1.8,
        metavar="S",
        help="leave a method out where a product would take longer, as told from the shape before (default: %(default)s)",
    )
    parser.add_argument(
        "--budget-seconds",
        type=_duration,
        metavar="S",
        help="for everything: shortens the turns to fit, and begins no other shape or phi once it is spent",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all columns to FILE, after every shape")


def main(args: argparse.Namespace) -> int:
    if args.json is not None:
        check_output(args.json, (".json",))
    try:
        chosen = methods.parse(["native", *args.methods])
    except ValueError as error:
        raise InputError(reason(error)) from error
    sizes = args.sizes
    if sizes is None:
        sizes = [] if args.shapes else GPU_SIZES if jax.default_backend() == "gpu" else CPU_SIZES
    extents = [*((n, n, n) for n in sizes), *args.shapes]
    shapes = [Shape(m, n, k, args.batch, args.dtype) for m, n, k in extents]
    phis = list(dict.fromkeys(args.phi))
    effort = Effort(args.seconds, args.rounds, args.longest, args.budget_seconds)
    meta = _meta(args)

    with Progress(steps(shapes, phis, effort)) as progress:
        try:
            for outcome in measure(chosen, shapes, phis, effort, progress):
                meta["spent_s"] = outcome.spent
                if args.json is not None:
                    with replacing(args.json) as file:
                        file.write(results.encode(meta, outcome.rows, outcome.left_out))
        except (ArithmeticError, jax.errors.JaxRuntimeError) as error:
            raise Failure(reason(error)) from error
    rows, left_out = outcome.rows, outcome.left_out
    blocks = [tables.head(meta), *(table.text() for table in tables.of_rows(rows))]
    if left_out:
        lines = tables.left_out(left_out, set(map(str, shapes)))
        blocks.append(["left out:", *(f"  {line}" for line in lines)])
    print("\n\n".join("\n".join(block) for block in blocks))
    if args.json is not None:
        print(f"\nall columns: {args.json}")
    broken = [row for row in rows if not row["within_contract"]]
    if broken:
        raise Failure("; ".join(map(_broken, broken)))
    return 0


def _broken(row: results.Row) -> str:
    shape = (row["m"], row["n"], row["k"])
    return (
        f"{row['method']} breaks its contract {row['contract']} at (m, n, k) = {shape}, phi = {row['phi']:g}: "
        f"an error is {row['share']:.3g} times the allowed one"
    )


def _meta(args: argparse.Namespace) -> dict[str, Any]:
    """What the results belong to."""
    device = jax.devices()[0]
    driver, power, clock = query_gpu("driver_version", "power.limit", "clocks.max.sm")
    build = _ffi.build_info()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device.device_kind if device.platform != "cpu" else f"{platform.machine()}, {build['cpu_isa']}",
        "platform": device.platform,
        "driver": driver,
        "power_limit_w": power,
        "max_sm_mhz": clock,
        "cpus": os.cpu_count(),
        "jax_ozaki": version("jax-ozaki"),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "cublas": _cublas_version(),
        "python": platform.python_version(),
        "ffi_hash": build["ffi_hash"],
        "build_flags": build["build_flags"],
        "variables": {
            name: value for name, value in os.environ.items() if name.startswith(("JAX_OZAKI_", "XLA_FLAGS"))
        },
        "seconds": args.seconds,
        "rounds": args.rounds,
        "budget_seconds": args.budget_seconds,
    }


def _cublas_version() -> str | None:
    if jax.default_backend() != "gpu":
        return None
    try:
        return cublas.version_text()
    except Unavailable:
        return None


class Progress:
    """A bar on the terminal, nothing elsewhere; it disappears in the end."""

    WIDTH = 24

    def __init__(self, steps: int) -> None:
        self._steps, self._shown = steps, False

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        return self

    def __call__(self, done: int, what: str) -> None:
        if sys.stderr.isatty():
            self._shown = True
            bar = "#" * (self.WIDTH * done // self._steps)
            elapsed = time.monotonic() - self._start
            text = f"[{bar:-<{self.WIDTH}}] {done}/{self._steps} {elapsed:.0f} s  n = {what}"
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _list(sizes: Sequence[int]) -> str:
    return " ".join(map(str, sizes))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a positive integer is needed")
    return int(text)


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"{text!r}: m,n,k is needed, as in 4096,512,4096")
    m, n, k = map(_positive, parts)
    return m, n, k


def _phi(text: str) -> float:
    try:
        phi = float(text)
    except ValueError:
        phi = -1.0
    if not 0 <= phi <= 8:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 0 to 8 is needed")
    return phi


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: a positive number of seconds is needed")
    return seconds
