"""Icosahedral fullerenes C60, C180, C540, C1620, ... written as .xyz: the geometries that the demo ships.

    python fullerenes.py 60 540

A leapfrog step (P. W. Fowler, 1986) puts one atom on each side of every bond, towards the two faces that
meet there, and triples the molecule: C20 -> C60 -> C180 -> C540, the Goldberg-Coxeter fullerenes (1,1), (3,0), (3,3).
Every leapfrog fullerene has a closed shell: its HOMO is bonding and its LUMO antibonding.

C60 gets its two bond lengths in closed form. The larger cages are relaxed: every bond 1.42 angstrom, every angle that of its ring.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.spatial import ConvexHull, cKDTree

BOND = 1.42  # angstrom, graphene
C60_HEXAGON_BOND, C60_PENTAGON_BOND = 1.40, 1.46  # angstrom


def dodecahedron():
    """The 12 pentagons of C20, each a cyclic list of its vertices on the unit sphere."""
    phi = (1 + 5**0.5) / 2
    centers = np.array([p for s in (1, -1) for t in (phi, -phi) for p in [(0, s, t), (s, t, 0), (t, 0, s)]])
    triangles = ConvexHull(centers).simplices
    vertices = centers[triangles].mean(axis=1)
    faces = [around(vertices, center, np.flatnonzero((triangles == i).any(axis=1))) for i, center in enumerate(centers)]
    return vertices / np.linalg.norm(vertices, axis=1, keepdims=True), faces


def around(vertices, center, members):
    """``members`` in cyclic order round the axis through ``center``."""
    u = np.cross(center, vertices[members[0]])
    v = np.cross(center, u)
    angle = np.arctan2(vertices[members] @ v / np.linalg.norm(v), vertices[members] @ u / np.linalg.norm(u))
    return [int(i) for i in np.asarray(members)[np.argsort(angle)]]


def sides(face):
    """The bonds of a face as sorted pairs of atoms."""
    return [tuple(sorted(pair)) for pair in zip(face, face[1:] + face[:1], strict=True)]


def leapfrog(vertices, faces, fraction=1 / 3):
    """One leapfrog step: an atom for every (bond, face); a ring inside every face and one round every old atom.

    The atom of (bond, face) lies at ``fraction`` of the way from the centre of its face to that of the face across the bond.
    """
    flags = [(side, f) for f, face in enumerate(faces) for side in sides(face)]
    index = {flag: i for i, flag in enumerate(flags)}
    meeting = {side: [f for s, f in flags if s == side] for side, _ in flags}
    centers = np.array([vertices[face].mean(axis=0) for face in faces])
    here = centers[[f for _, f in flags]]
    across = centers[[sum(meeting[side]) - f for side, f in flags]]
    new = here + fraction * (across - here)
    inner = [[index[side, f] for side in sides(face)] for f, face in enumerate(faces)]
    outer = [
        around(new, vertex, [i for i, (side, _) in enumerate(flags) if a in side]) for a, vertex in enumerate(vertices)
    ]
    return new, inner + outer


def c60():
    """The truncated icosahedron, in angstrom: an icosahedron of edge 5:6 + 6:6 + 5:6 bond with its corners cut off."""
    vertices, faces = leapfrog(*dodecahedron(), C60_PENTAGON_BOND / (C60_HEXAGON_BOND + 2 * C60_PENTAGON_BOND))
    first, second = faces[0][:2]
    return vertices * C60_PENTAGON_BOND / np.linalg.norm(vertices[first] - vertices[second]), faces


def relax(vertices, faces):
    """Least squares on bond lengths and on second-neighbour distances (the angles of regular rings), in angstrom."""
    bonds = np.array(sorted({side for face in faces for side in sides(face)}))
    angles = np.array([(a, c) for face in faces for a, c in zip(face, face[2:] + face[:2], strict=True)])
    opening = np.concatenate([np.full(len(face), np.pi / 2 - np.pi / len(face)) for face in faces])
    pairs = np.concatenate([bonds, angles])
    rest = np.concatenate([np.full(len(bonds), BOND), 2 * BOND * np.sin(opening)])
    weight = np.concatenate([np.ones(len(bonds)), np.full(len(angles), 0.25)])

    def energy(flat):
        x = flat.reshape(-1, 3)
        difference = x[pairs[:, 0]] - x[pairs[:, 1]]
        length = np.linalg.norm(difference, axis=1)
        force = (2 * weight * (length - rest) / length)[:, None] * difference
        gradient = np.zeros_like(x)
        np.add.at(gradient, pairs[:, 0], force)
        np.add.at(gradient, pairs[:, 1], -force)
        return np.sum(weight * (length - rest) ** 2), gradient.ravel()

    start = vertices * BOND / np.linalg.norm(vertices[bonds[:, 0]] - vertices[bonds[:, 1]], axis=1).mean()
    return minimize(energy, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 5000}).x.reshape(-1, 3)


def fullerene(atoms):
    """Vertices (angstrom) and faces of the icosahedral leapfrog fullerene with 60 * 3^s atoms."""
    vertices, faces = c60()
    while len(vertices) < atoms:
        vertices, faces = leapfrog(vertices, faces)
    if len(vertices) != atoms:
        raise ValueError(f"C{atoms} is not a leapfrog of C20; the sizes are 60, 180, 540, 1620, ...")
    return (vertices, faces) if atoms == 60 else (relax(vertices, faces), faces)


def write(path, vertices, faces):
    """Write an .xyz file whose comment line says how the geometry was made."""
    neighbours = cKDTree(vertices).query_pairs(1.8)
    assert neighbours == {side for face in faces for side in sides(face)}, (
        "the bonds are not the pairs below 1.8 angstrom"
    )
    assert Counter(map(len, faces)) == {5: 12, 6: len(vertices) // 2 - 10}, "not a fullerene"
    bonds = np.linalg.norm(np.subtract(*(vertices[list(ends)] for ends in zip(*neighbours, strict=True))), axis=1)
    how = (
        "truncated icosahedron in closed form"
        if len(vertices) == 60
        else "leapfrog of C20, ring bonds and angles relaxed"
    )
    comment = f"C{len(vertices)} fullerene, Ih; {how} (examples/fullerenes.py); bonds {bonds.min():.3f}-{bonds.max():.3f} angstrom"
    lines = [f"C {x:11.6f} {y:11.6f} {z:11.6f}" for x, y, z in vertices]
    Path(path).write_text("\n".join([str(len(vertices)), comment, *lines, ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("atoms", nargs="+", type=int, help="60, 180, 540, 1620, ...")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write c<atoms>.xyz (default: here)")
    args = parser.parse_args()
    for atoms in args.atoms:
        write(args.directory / f"c{atoms}.xyz", *fullerene(atoms))


if __name__ == "__main__":
    main()
