"""What the commands share: their two kinds of error, the --contract option, safe output files."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import jax_ozaki as jo


class InputError(Exception):
    """The arguments or the files they name cannot be used (exit status 2)."""


class Failure(Exception):
    """The work itself failed (exit status 1)."""


def reason(error: BaseException) -> str:
    """The cause of an error in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def add_contract(parser: argparse.ArgumentParser, default: str | None, meaning: str) -> None:
    """Add ``--contract``, parsed by ``Contract.parse``."""

    def parse(text: str) -> jo.Contract:
        try:
            return jo.Contract.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(reason(error)) from None

    parser.add_argument(
        "--contract",
        type=parse,
        default=default,
        metavar="CONTRACT",
        help="what is guaranteed: componentwise(c) with c in units of u |A||B|, u = 2^-53, exact, normwise(c) with c "
        f"in units of u |a_i|_2 |b_j|_2, mantissa(bits), moduli(n), or native (default: {meaning})",
    )


def check_output(path: Path, suffixes: tuple[str, ...]) -> None:
    """Refuse an output that could not be written before any work is done for it."""
    if not path.name.endswith(suffixes):
        raise InputError(f"{path}: the output must end in {', '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    directory = path.absolute().parent
    if not directory.is_dir():
        raise InputError(f"{path}: no such directory")
    if not os.access(directory, os.W_OK):
        raise Failure(f"{path}: the directory cannot be written to")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` once it is complete and on the disk.

    Until then ``path`` is untouched: when anything fails, whatever it held is still there.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise Failure(f"{path}: {reason(error)}; the output was not written") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
