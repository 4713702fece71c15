"""``plot``: figures of the results that ``bench`` wrote."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from jax_ozaki._bench import plots, results
from jax_ozaki._cli.common import Failure, InputError, check_output, reason, replacing

FORMATS = ("png", "svg", "pdf")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plot",
        help="draw the results of bench",
        description="Draw time and TFLOPS against n (NAME-speed), error against time (NAME-accuracy) and the stages "
        "(NAME-stages) of a file that bench --json wrote. Methods are compared at equal contract only.",
    )
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="NAME",
        help="beginning of the figures' names (default: that of the results)",
    )
    parser.add_argument("--format", choices=FORMATS, nargs="+", default=["png"], help="(default: png)")


def main(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("matplotlib") is None:
        raise Failure("the figures need matplotlib: pip install 'jax-ozaki[bench]'")
    stem = args.output or args.results.with_suffix("")
    files = {
        (name, form): stem.with_name(f"{stem.name}-{name}.{form}") for name in plots.FIGURES for form in args.format
    }
    for path in files.values():
        check_output(path, FORMATS)
    try:
        found = results.read(args.results)
    except (OSError, ValueError) as error:
        raise InputError(f"{args.results}: {reason(error)}") from error
    if found["schema"] != results.SCHEMA:
        raise InputError(f"{args.results}: a profile, of which there are no figures")
    for name, draw in plots.FIGURES.items():
        figure = draw(found)
        if figure is None:
            print(f"{name}: nothing to draw in {args.results}")
            continue
        for form in args.format:
            with replacing(files[name, form]) as file:
                figure.savefig(file, format=form, dpi=110)
            print(f"{name}: {files[name, form]}")
    return 0
