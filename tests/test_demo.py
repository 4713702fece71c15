"""jax-ozaki demo: density matrices of molecules, and geometries that are refused."""

import re
import sys
from importlib import resources

import numpy as np
import pytest

from command_line import assert_refused, run
from jax_ozaki.__main__ import main
from jax_ozaki._cli import demo, molecule

pytestmark = pytest.mark.usefixtures("directory")


def ring(atoms, bond=1.4):
    """A regular polygon of carbon atoms as .xyz lines; the bond, in angstrom, is that of benzene."""
    angle = 2 * np.pi * np.arange(atoms) / atoms
    radius = bond / (2 * np.sin(np.pi / atoms))
    return [f"C {radius * np.cos(t):.6f} {radius * np.sin(t):.6f} 0.0" for t in angle]


def xyz(path, lines):
    path.write_text("\n".join([str(len(lines)), "a test", *lines, ""]))
    return str(path)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """What the demo prints, and its plot, for the molecules it ships."""
    plot = tmp_path_factory.mktemp("demo") / "plot.png"
    done = run("demo", "-o", str(plot))
    assert done.returncode == 0, done.stderr
    assert "iteration" not in done.stderr  # no progress line away from a terminal
    return done.stdout, plot


def energies(text):
    """{(molecule, method): energy} from the demo's tables."""
    found, name = {}, None
    for line in text.splitlines():
        name = line.partition(":")[0] if re.match(r"C\d+:", line) else name
        if match := re.match(r"  (diagonalisation|SP2 with \S+) +(-[\d.]+)", line):
            found[name, match[1]] = float(match[2])
    return found


def test_demo_agrees_with_diagonalisation(shipped):
    found = energies(shipped[0])
    assert len(found) == 6
    for (name, _), energy in found.items():
        assert abs(energy - found[name, "diagonalisation"]) < 1e-10
    assert abs(found["C60", "diagonalisation"] + 93.1616) < 5e-5  # 60 alpha + 93.1616 beta
    assert abs(float(re.search(r"HOMO-LUMO gap ([\d.]+)", shipped[0])[1]) - 0.7566) < 5e-5


def test_demo_says_what_it_did(shipped):
    for words in ("normwise(2)", "decay", "iterations", "|P^2-P|_F", "INT8", "angstrom"):
        assert words in shipped[0]


def test_demo_draws_its_plot(shipped):
    from matplotlib.image import imread

    image = imread(shipped[1])
    assert min(image.shape[:2]) > 500
    assert image[..., :3].std() > 0.05


@pytest.mark.parametrize(("name", "atoms"), [("c60.xyz", 60), ("c540.xyz", 540)])
def test_shipped_molecules_are_fullerenes(name, atoms):
    with resources.as_file(resources.files("jax_ozaki") / "data" / name) as path:
        h = molecule.read_molecule(path).hamiltonian
    assert h.shape == (atoms, atoms)
    assert (h.sum(axis=1) == -3).all()
    levels = np.linalg.eigvalsh(h)
    assert levels[len(h) // 2] - levels[len(h) // 2 - 1] > 0.3


def test_demo_on_benzene(directory, capsys):
    path = xyz(directory / "benzene.xyz", ring(6))
    assert main(["demo", path, "--contract", "mantissa(53)"]) == 0
    out = capsys.readouterr().out
    assert "HOMO-LUMO gap 2.000000" in out
    assert "6 alpha + 8.000000 beta" in out
    assert "mantissa(53)" in out
    assert (directory / "purification.png").stat().st_size > 10_000


def test_demo_with_too_few_moduli_fails(directory, capsys):
    status = main(["demo", xyz(directory / "ring.xyz", ring(10)), "--contract", "moduli(4)"])
    assert_refused(capsys, status, 1, "C10 with jax_ozaki")
    assert not (directory / "purification.png").exists()


def test_progress_on_a_terminal_only(directory, capsys, monkeypatch):
    path = xyz(directory / "benzene.xyz", ring(6))
    monkeypatch.setattr(demo.Progress, "QUIET", 0.0)
    assert main(["demo", path]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["demo", path]) == 0
    error = capsys.readouterr().err
    assert "C6 with jax_ozaki: iteration 3, |P^2-P|_F = " in error
    assert error.endswith("\r\033[K")  # the line is gone


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "line 1"),
        (b"six\n\n", "line 1"),
        (b"0\n\n", "line 1"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"2\n\nC 0 0 0\n", "2 atoms announced, 1 lines follow"),
        (b"2\n\nC 0 0 0\nC 0 0\n", "line 4"),
        (b"2\n\nC 0 0 0\nC 0 0 nan\n", "line 4"),
        (b"2\n\nC 0 0 0\nC 0 0 x\n", "line 4"),
        (b"2\n\nC 0 0 0\n\n", "line 4"),
        (b"1\n\nC 0 0 0\nC 0 0 1.4\n", "more than the 1 atoms"),
    ],
)
def test_damaged_geometry(text, words, directory, capsys):
    (directory / "x.xyz").write_bytes(text)
    assert_refused(capsys, main(["demo", "x.xyz"]), 2, "x.xyz: ", words)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (ring(5), "5 pi electrons, an odd number"),
        (ring(8), "open shell"),
        ([*ring(6), "H 2.48 0 0"], "line 9 holds H"),
        (ring(6, 0.14), "must be in angstrom"),
        (ring(6, 2.6), "atom 1 has 0 neighbours"),
        ([f"C {x} {y} 0" for x, y in [(0, 0), (1.7, 0), (-1.7, 0), (0, 1.7), (0, -1.7), (0, 3)]],
         "atom 1 has 4 neighbours"),
    ],
)  # fmt: skip
def test_molecules_that_the_model_does_not_fit(lines, words, directory, capsys):
    assert_refused(capsys, main(["demo", xyz(directory / "x.xyz", lines)]), 2, words)


def test_demo_refuses_before_it_computes(capsys):
    assert_refused(capsys, main(["demo", "no.xyz"]), 2, "no.xyz: No such file")
    assert_refused(capsys, main(["demo", "-o", "plot.txt"]), 2, "plot.txt", ".png")
    assert_refused(capsys, main(["demo", "-o", "no/plot.png"]), 2, "no/plot.png")


def test_demo_without_matplotlib(monkeypatch, capsys):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    assert_refused(capsys, main(["demo"]), 1, "matplotlib", "jax-ozaki[examples]")
