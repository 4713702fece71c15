"""The command line: ``python -m jax_ozaki COMMAND ...``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import jax

from jax_ozaki._cli import bench, demo, info, multiply, plot, profile, results
from jax_ozaki._cli.common import Failure, InputError

COMMANDS = {
    "info": info,
    "multiply": multiply,
    "demo": demo,
    "bench": bench,
    "plot": plot,
    "profile": profile,
    "results": results,
}
"""Every command is a module with ``add_parser(subparsers)`` and ``main(args)``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for a failure, 2 for unusable input."""
    parser = argparse.ArgumentParser(
        prog="python -m jax_ozaki",
        description="float64 matrix products on INT8 matrix units, under a stated precision contract",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        # The library leaves JAX's flags alone; a program about float64 needs this one.
        with jax.enable_x64(True):
            return COMMANDS[args.command].main(args) or 0
    except (InputError, Failure) as error:
        print(f"{parser.prog} {args.command}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except BrokenPipeError:  # `... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
