"""Carbon molecules: .xyz geometries and their Hueckel Hamiltonian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.spatial

from jax_ozaki._cli.common import InputError, reason

BOND_LIMIT = 1.8
"""Carbon atoms closer than this, in angstrom, are neighbours: bonds are 1.35-1.55 long, second neighbours 2.3 away."""

CONTACT_LIMIT = 1.0
"""No two atoms are closer than this, in angstrom."""


@dataclass(frozen=True)
class Molecule:
    """A carbon pi system with one electron an atom. Energies are in units of |beta|, alpha = 0."""

    name: str
    comment: str
    hamiltonian: np.ndarray[Any, np.dtype[np.float64]]
    """H_ij = beta = -1 between neighbours, 0 elsewhere (shape (atoms, atoms))."""

    @property
    def atoms(self) -> int:
        return len(self.hamiltonian)

    @property
    def bonds(self) -> int:
        return int(np.count_nonzero(self.hamiltonian)) // 2

    @property
    def occupied(self) -> int:
        """Doubly occupied orbitals."""
        return self.atoms // 2


def read_molecule(path: Path) -> Molecule:
    """The pi system of the molecule in an .xyz file (coordinates in angstrom)."""
    comment, positions = _read_xyz(path)
    atoms = len(positions)
    if atoms % 2:
        raise InputError(f"{path}: {atoms} pi electrons, an odd number, are no closed shell")
    tree = scipy.spatial.cKDTree(positions)
    if contacts := tree.query_pairs(CONTACT_LIMIT):
        i, j = min(contacts)
        distance = np.linalg.norm(positions[i] - positions[j])
        raise InputError(
            f"{path}: atoms {i + 1} and {j + 1} are {distance:.2f} apart; the coordinates must be in angstrom"
        )
    pairs = tree.query_pairs(BOND_LIMIT, output_type="ndarray")
    neighbours = np.bincount(pairs.ravel(), minlength=atoms)
    if (wrong := np.flatnonzero((neighbours < 1) | (neighbours > 3))).size:
        raise InputError(
            f"{path}: atom {wrong[0] + 1} has {neighbours[wrong[0]]} neighbours within "
            f"{BOND_LIMIT} angstrom; an atom of a pi system has 1 to 3"
        )
    hamiltonian = np.zeros((atoms, atoms))
    hamiltonian[pairs[:, 0], pairs[:, 1]] = hamiltonian[pairs[:, 1], pairs[:, 0]] = -1.0
    return Molecule(f"C{atoms}", comment, hamiltonian)


def _read_xyz(path: Path) -> tuple[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """The comment and the positions, shape (atoms, 3), in an .xyz file that holds carbon only."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: damaged: not a text file") from None
    if not lines or not lines[0].strip().isdecimal() or int(lines[0]) == 0:
        raise InputError(f"{path}: damaged: line 1 of an .xyz file is the number of atoms")
    atoms = int(lines[0])
    body = lines[2 : 2 + atoms]
    if len(body) < atoms:
        raise InputError(f"{path}: damaged: {atoms} atoms announced, {len(body)} lines follow")
    if any(line.strip() for line in lines[2 + atoms :]):
        raise InputError(f"{path}: more than the {atoms} atoms announced; one molecule is needed")
    return lines[1].strip(), np.array([_position(path, n, line) for n, line in enumerate(body, 3)])


def _position(path: Path, number: int, line: str) -> list[float]:
    symbol, *fields = line.split() or [""]
    try:
        position = [float(field) for field in fields[:3]]
    except ValueError:
        position = []
    if len(position) != 3 or not all(map(math.isfinite, position)):
        raise InputError(f"{path}: damaged: line {number} is no `symbol x y z`: {line[:60]!r}")
    if symbol.capitalize() != "C":
        raise InputError(
            f"{path}: line {number} holds {symbol}: the Hueckel model here knows carbon only "
            "(leave out the hydrogen atoms of a planar hydrocarbon)"
        )
    return position
