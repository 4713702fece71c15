"""Matrices in files: NumPy's .npy and .npz, Matrix Market's .mtx and .mtx.gz."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.io
import scipy.sparse

from jax_ozaki._cli.common import Failure, InputError, reason, replacing

INPUT_SUFFIXES = (".npy", ".npz", ".mtx", ".mtx.gz")
OUTPUT_SUFFIXES = (".npy", ".npz", ".mtx")

Array = np.ndarray[Any, np.dtype[Any]]


def read(name: str) -> Array:
    """The array in file ``name``, or the one called ``key`` for ``FILE.npz:key``."""
    path, key = Path(name), None
    if not path.exists() and ".npz:" in name:
        stem, _, key = name.partition(".npz:")
        path = Path(stem + ".npz")
    if not path.name.endswith(INPUT_SUFFIXES):
        raise InputError(f"{name}: the file must end in {', '.join(INPUT_SUFFIXES)}")
    try:
        with path.open("rb") as file:
            if path.suffix == ".npy":
                return np.lib.format.read_array(file, allow_pickle=False)
            if path.suffix == ".npz":
                return _read_npz(file, path, key)
            return _read_matrix_market(gzip.open(file).read() if path.suffix == ".gz" else file.read())
    except InputError:
        raise
    except MemoryError:
        raise Failure(f"{name}: not enough memory for the (dense) matrix") from None
    except OSError as error:
        if error.errno is not None:
            raise InputError(f"{path}: {reason(error)}") from None
        raise InputError(f"{name}: damaged: {reason(error)}") from None
    except Exception as error:  # a parser given damaged bytes may raise anything
        if "allow_pickle" in str(error):
            raise InputError(f"{name}: dtype object is not supported: numbers are needed") from None
        raise InputError(f"{name}: damaged or no {path.suffix} file: {reason(error)}") from None


def _read_npz(file: BinaryIO, path: Path, key: str | None) -> Array:
    if not zipfile.is_zipfile(file):
        raise ValueError("not a zip archive")
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        keys = ", ".join(archive.files) or "nothing"
        if key is None and len(archive.files) != 1:
            raise InputError(f"{path}: choose one array with {path}:KEY; the file holds {keys}")
        if key is not None and key not in archive.files:
            raise InputError(f"{path}: no array {key!r}; the file holds {keys}")
        return np.asarray(archive[key or archive.files[0]])


def _read_matrix_market(text: bytes) -> Array:
    if re.search(rb"[eE][+-]?$", text):
        raise ValueError("it ends within a number")
    # The final newline: scipy 1.17 reads beyond the end of a text that stops within a word.
    matrix = scipy.io.mmread(io.BytesIO(text + b"\n"))
    return np.asarray(matrix.toarray() if scipy.sparse.issparse(matrix) else matrix)


def write(path: Path, matrix: Array) -> None:
    """Write ``matrix`` in the format that the suffix of ``path`` names, every bit of it."""
    with replacing(path) as file:
        if path.suffix == ".npy":
            # Not np.save: where the disk is full, its error does not say so.
            header = np.lib.format.header_data_from_array_1_0(matrix)
            np.lib.format.write_array_header_1_0(file, header)
            file.write(matrix.data)
        elif path.suffix == ".npz":
            np.savez(file, C=matrix)
        else:
            scipy.io.mmwrite(file, matrix)


def as_operand(matrix: Array, name: str) -> tuple[Array, str]:
    """``matrix`` as float64 or complex128 of equal value, and what was done to it in words."""
    if matrix.ndim != 2:
        raise InputError(f"{name}: a matrix is needed, this array has shape {matrix.shape}")
    kind, found = matrix.dtype.kind, matrix.dtype.name
    if kind not in "biufc" or (kind in "fc" and matrix.real.dtype.itemsize > 8):
        raise InputError(
            f"{name}: dtype {found} is not supported: booleans, integers, "
            "floating-point numbers up to float64 and complex numbers up to complex128 are"
        )
    if kind in "iu" and not _fits_float64(matrix):
        raise InputError(f"{name}: dtype {found}, with integers that float64 does not hold exactly")
    operand = matrix.astype(np.complex128 if kind == "c" else np.float64, copy=False)
    shape = " x ".join(map(str, matrix.shape))
    if found == operand.dtype.name:
        return operand, f"{shape} {found}"
    return operand, f"{shape} {found}, converted to {operand.dtype.name} (exact)"


def _fits_float64(integers: Array) -> bool:
    """Whether every integer is an odd number below 2^53 times a power of two."""
    magnitude = np.where(integers < 0, 0 - integers.astype(np.uint64), integers.astype(np.uint64))
    lowest_bit = np.maximum(magnitude & (0 - magnitude), np.uint64(1))
    return bool(np.all(magnitude // lowest_bit < 2**53))
