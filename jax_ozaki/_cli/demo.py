"""``demo``: the density matrix of a carbon molecule, natively, through jax_ozaki, and exactly."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_ozaki as jo
from jax_ozaki._cli.common import Failure, InputError, add_contract, check_output, replacing
from jax_ozaki._cli.molecule import Molecule, read_molecule
from jax_ozaki._cli.purification import MAX_ITERATIONS, Purified, purify

SHIPPED = ("c60.xyz", "c540.xyz")
PLOT_SUFFIXES = (".png", ".pdf", ".svg")

TOLERANCE = 1e-12
"""Allowed error of the energy, in |beta| an atom."""

SMALLEST_GAP = 1e-6
"""HOMO and LUMO closer than this, in |beta|, count as degenerate."""

TABLE = "  {:24}{:>18}{:>10}{:>11}{:>12}{:>9}"

WHY_NORMWISE = """\
Why a normwise promise: density matrices decay, so far from the diagonal an element is a small
difference of what the rows hold, and the error of P is judged by its norm. To promise each element
a relative accuracy of its own would cost more and change no energy."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="density matrix of a carbon molecule by SP2 purification",
        description="The pi electrons of a carbon molecule in the Hueckel model: the density "
        "matrix by SP2 purification with jnp.dot, the same program through jax_ozaki.emulate, and by diagonalisation. "
        "Energies are in units of |beta|, alpha = 0.",
    )
    parser.add_argument(
        "geometry",
        nargs="?",
        type=Path,
        metavar="GEOMETRY.xyz",
        help="carbon atoms, coordinates in angstrom (default: the C60 and C540 shipped)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("purification.png"),
        metavar="PLOT",
        help="convergence plot: .png, .pdf or .svg (default: %(default)s)",
    )
    add_contract(parser, "normwise(2)", "%(default)s")


@dataclass(frozen=True)
class Result:
    """One molecule, all three ways. Energies in |beta|."""

    molecule: Molecule
    exact: float
    native: Purified
    emulated: Purified


def main(args: argparse.Namespace) -> int:
    check_output(args.output, PLOT_SUFFIXES)
    if importlib.util.find_spec("matplotlib") is None:
        raise Failure("the plot needs matplotlib: pip install 'jax-ozaki[examples]'")
    if args.geometry is not None:
        molecules = [read_molecule(args.geometry)]
    else:
        with resources.as_file(resources.files("jax_ozaki") / "data") as data:
            molecules = [read_molecule(data / name) for name in SHIPPED]
    results = [_run(molecule, args.contract) for molecule in molecules]
    with replacing(args.output) as file:
        _plot(results, args.contract).savefig(file, format=args.output.suffix[1:], dpi=150)
    print(f"plot: {args.output}")
    return 0


def _run(molecule: Molecule, contract: jo.Contract) -> Result:
    """Compute and print one molecule; ``Failure`` where an energy is off."""
    print(f"{molecule.name}: {molecule.comment}")
    print(f"  {molecule.atoms} carbon atoms, {molecule.bonds} bonds, {molecule.atoms} pi electrons")
    h = jnp.asarray(molecule.hamiltonian)
    levels, _ = jnp.linalg.eigh(h)
    levels = np.asarray(levels)
    exact = 2 * float(levels[: molecule.occupied].sum())
    gap = float(levels[molecule.occupied] - levels[molecule.occupied - 1])
    if gap < SMALLEST_GAP:
        raise InputError(
            f"{molecule.name} has an open shell: its HOMO and LUMO are degenerate "
            f"(gap {gap:.1e} |beta|), so no density matrix is singled out"
        )
    print(f"  HOMO-LUMO gap {gap:.6f} |beta|, total pi energy {molecule.atoms} alpha + {-exact:.6f} beta")
    print()
    print(TABLE.format("", "energy / |beta|", "- exact", "|P^2-P|_F", "iterations", "seconds"))
    print(TABLE.format("diagonalisation", f"{exact:.10f}", "", "", "", "").rstrip())
    native = _purify(molecule, h, "jnp.dot", purify, exact)
    emulated = _purify(molecule, h, "jax_ozaki", jo.emulate(purify, contract, min_size=0), exact)
    print()
    plan = jo.plan(molecule.atoms, molecule.atoms, molecule.atoms, contract=contract)
    _, report = jo.dot(p := emulated.density, p, contract=contract, return_report=True)
    print(_indented(f"plan of a product: {plan}"))
    print(_indented(f"report of the last one: {report}"))
    if contract.kind == "normwise":
        print(_indented(WHY_NORMWISE))
    print()
    return Result(molecule, exact, native, emulated)


def _purify(molecule: Molecule, h: jax.Array, name: str, purify: Any, exact: float) -> Purified:
    """Purify, print the line of the table, check the energy."""
    progress = Progress(f"{molecule.name} with {name}")
    callback = progress.show if sys.stderr.isatty() else None
    run = jax.jit(lambda h: purify(h, molecule.occupied, callback)).lower(h).compile()
    with progress:
        result = jax.block_until_ready(run(h))
        seconds = time.perf_counter() - progress.started
    last = int(result.iterations)
    energy, idempotency = float(result.energy[last]), float(result.idempotency[last])
    error = energy - exact
    numbers = (f"{energy:.10f}", f"{error:.1e}", f"{idempotency:.1e}", last, f"{seconds:.2f}")
    print(TABLE.format(f"SP2 with {name}", *numbers))
    if last == MAX_ITERATIONS:
        raise Failure(f"{molecule.name} with {name}: not converged in {last} iterations")
    if not abs(error) <= TOLERANCE * molecule.atoms:
        raise Failure(
            f"{molecule.name} with {name}: the energy is off by {error:.1e} |beta|, "
            f"more than {TOLERANCE * molecule.atoms:.1e}"
        )
    return result


class Progress:
    """One line on the terminal that follows a long run and disappears after it."""

    QUIET = 1.0  # seconds

    def __init__(self, title: str) -> None:
        self.title, self.shown = title, False

    def __enter__(self) -> Progress:
        self.started = time.perf_counter()
        return self

    def show(self, iteration: Any, idempotency: Any) -> None:
        if time.perf_counter() - self.started > self.QUIET:
            self.shown = True
            line = f"{self.title}: iteration {int(iteration)}, |P^2-P|_F = {float(idempotency):.1e}"
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        jax.effects_barrier()
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _indented(text: object) -> str:
    return "\n".join(f"  {line}" for line in str(text).splitlines())


def _plot(results: list[Result], contract: jo.Contract) -> Any:
    """Idempotency error and energy error against the iteration, one column a molecule."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    figure = Figure(figsize=(4.6 * len(results) + 0.6, 6.4), layout="constrained")
    axes = figure.subplots(2, len(results), sharex="col", sharey="row", squeeze=False)
    for (above, below), result in zip(axes.T, results, strict=True):
        molecule = result.molecule
        above.set_title(f"{molecule.name}:  $E$ = {result.exact:.4f} $|\\beta|$")
        below.set_xlabel("iteration")
        for run, label, style in (
            (result.native, "jnp.dot", {"marker": "o", "ms": 7, "mfc": "none", "color": "C0"}),
            (result.emulated, f"jax_ozaki, {contract}", {"marker": ".", "color": "C1"}),
        ):
            count = int(run.iterations) + 1
            ulp = np.spacing(abs(result.exact))  # an error of 0 has no logarithm
            energy = np.maximum(abs(np.asarray(run.energy[:count]) - result.exact), ulp)
            above.semilogy(np.asarray(run.idempotency[:count]), lw=1, label=label, **style)
            below.semilogy(energy, lw=1, **style)
        allowed = TOLERANCE * molecule.atoms
        below.axhline(allowed, lw=1, ls="--", color="0.5", label=f"allowed: {allowed:.0e}")
        below.legend(frameon=False, loc="lower left")
    axes[0, 0].set_ylabel(r"idempotency error $\|P^2 - P\|_F$")
    axes[1, 0].set_ylabel(r"energy error $|E - E_{\mathrm{diag}}|\;/\;|\beta|$")
    axes[0, 0].legend(frameon=False, loc="lower left")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
