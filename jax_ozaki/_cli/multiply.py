"""``multiply``: the product of two matrices in files, with its plan and its report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_ozaki as jo
from jax_ozaki._cli import matrices
from jax_ozaki._cli.common import Failure, InputError, add_contract, check_output, reason


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "multiply",
        help="multiply two matrices in files",
        description="C = A B for matrices in .npy, .npz and Matrix Market files. Prints the plan "
        "(moduli, INT8 products, workspace in bytes) and the report (accuracy reached).",
        epilog="Integers, booleans and shorter floating-point numbers are converted to float64 "
        "where that is exact, those of complex matrices to complex128.",
    )
    formats = ".npy, .npz (one array, or FILE.npz:KEY), .mtx or .mtx.gz (sparse becomes dense)"
    parser.add_argument("a", metavar="A", help=f"m x k matrix: {formats}")
    parser.add_argument("b", metavar="B", help="k x n matrix, likewise")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="C",
        help="m x n product: .npy, .npz (array C) or .mtx; an old file is replaced only when the new one is complete",
    )
    add_contract(parser, None, "JAX_OZAKI_CONTRACT, or the library's default")


def main(args: argparse.Namespace) -> int:
    check_output(args.output, matrices.OUTPUT_SUFFIXES)
    a, about_a = matrices.as_operand(matrices.read(args.a), args.a)
    b, about_b = matrices.as_operand(matrices.read(args.b), args.b)
    if a.shape[1] != b.shape[0]:
        raise InputError(
            f"shapes {a.shape} of {args.a} and {b.shape} of {args.b} do not match: "
            f"A has {a.shape[1]} columns, B has {b.shape[0]} rows"
        )
    print(f"A: {args.a}, {about_a}")
    print(f"B: {args.b}, {about_b}")
    c = _product(a, b, args.contract)
    matrices.write(args.output, c)
    print(f"C: {args.output}, {c.shape[0]} x {c.shape[1]} {c.dtype.name}")
    return 0


def _plan(a: matrices.Array, b: matrices.Array, contract: jo.Contract | None) -> jo.Plan:
    (m, k), n = a.shape, b.shape[1]
    parts = [1 + np.iscomplexobj(x) for x in (a, b)]
    if parts == [2, 2]:
        return jo.plan(m, n, k, dtype="complex128", contract=contract)
    # A real and a complex matrix: one real product with the parts of the complex one side by side.
    return jo.plan(parts[0] * m, parts[1] * n, k, contract=contract)


def _product(a: matrices.Array, b: matrices.Array, contract: jo.Contract | None) -> matrices.Array:
    try:
        print(f"plan: {_plan(a, b, contract)}")
        c, report = jo.matmul(jnp.asarray(a), jnp.asarray(b), contract=contract, return_report=True)
        print(f"report: {report}")
        return np.asarray(c)
    except ValueError as error:  # a contract that this k cannot have
        raise InputError(reason(error)) from error
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        raise Failure(reason(error)) from error
