"""The command line: multiply and demo on real files, and every way they can be refused."""

import errno
import gzip
import os
import re
import resource
import subprocess
import sys
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import jax_ozaki as jo
from jax_ozaki.__main__ import main
from jax_ozaki._cli import demo, matrices, molecule

RNG = np.random.default_rng(7)
A = RNG.standard_normal((6, 5))
B = RNG.standard_normal((5, 4))


@pytest.fixture(autouse=True)
def directory(directory):
    """The working directory with a.npy and b.npy in it."""
    np.save("a.npy", A)
    np.save("b.npy", B)
    return directory


def multiply(a="a.npy", b="b.npy", output="c.npy", *options):
    return main(["multiply", str(a), str(b), "-o", str(output), *options])


def assert_refused(capsys, status, code, *words):
    """One line on stderr that holds every word, and the exit status."""
    error = capsys.readouterr().err
    assert status == code
    assert error.startswith("python -m jax_ozaki ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def leftovers(directory):
    return [path.name for path in directory.iterdir() if path.name.endswith(".tmp")]


# The program.


def run(*args, **options):
    command = [sys.executable, "-P", "-m", "jax_ozaki", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_process_multiplies_and_reports():
    done = run("multiply", "a.npy", "b.npy", "-o", "c.npy", "--contract", "normwise(2)")
    assert done.returncode == 0, done.stderr
    assert "normwise(2)" in done.stdout
    expected = jo.matmul(jnp.asarray(A), jnp.asarray(B), contract=jo.Contract.normwise(2))
    assert np.load("c.npy").tobytes() == np.asarray(expected).tobytes()


def test_process_refuses_without_a_traceback():
    done = run("multiply", "a.npy", "missing.npy", "-o", "c.npy")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "missing.npy: No such file" in done.stderr


def test_process_survives_a_closed_pipe():
    shell = f"'{sys.executable}' -P -m jax_ozaki info | head -c 1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["", "info", "multiply", "demo"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"] if command else ["--help"])
    assert stopped.value.code == 0
    assert "usage: python -m jax_ozaki" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["divide"], ["multiply", "a.npy"]])
def test_usage_errors(arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_x64_is_on_inside_the_program_only():
    with jax.enable_x64(False):
        assert multiply() == 0
        assert not jax.config.jax_enable_x64
    assert np.load("c.npy").dtype == np.float64


# multiply: formats.


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".mtx"])
@pytest.mark.parametrize("source", ["b.npy", "b.npz", "two.npz:right", "b.mtx", "b.mtx.gz"])
def test_formats(source, suffix, capsys):
    np.savez("b.npz", B=B)
    np.savez("two.npz", left=A, right=B)
    scipy.io.mmwrite("b.mtx", B)
    with open("b.mtx", "rb") as plain, gzip.open("b.mtx.gz", "wb") as packed:
        packed.write(plain.read())
    assert multiply("a.npy", source, f"c{suffix}") == 0
    c = matrices.read(f"c{suffix}")
    assert c.tobytes() == np.asarray(jo.matmul(jnp.asarray(A), jnp.asarray(B))).tobytes()
    if suffix == ".npz":
        assert np.load("c.npz").files == ["C"]
    out = capsys.readouterr().out
    assert "A: a.npy, 6 x 5 float64\n" in out
    assert f"B: {source}, 5 x 4 float64\n" in out
    assert str(jo.plan(6, 4, 5)) in out


def test_sparse_becomes_dense():
    sparse = scipy.sparse.random(5, 8, 0.3, random_state=1)
    scipy.io.mmwrite("s.mtx", sparse)
    assert multiply("a.npy", "s.mtx") == 0
    expected = jo.matmul(jnp.asarray(A), jnp.asarray(sparse.toarray()))
    assert np.load("c.npy").tobytes() == np.asarray(expected).tobytes()


def test_output_may_be_an_input():
    square = RNG.standard_normal((5, 5))
    np.save("a.npy", square)
    assert multiply("a.npy", "a.npy", "a.npy") == 0
    assert np.array_equal(np.load("a.npy"), jo.matmul(jnp.asarray(square), jnp.asarray(square)))


def test_output_through_a_link_keeps_link_and_mode(directory):
    (directory / "real.npy").write_bytes(b"old")
    (directory / "real.npy").chmod(0o640)
    (directory / "link.npy").symlink_to("real.npy")
    assert multiply(output="link.npy") == 0
    assert (directory / "link.npy").is_symlink()
    assert (directory / "real.npy").stat().st_mode & 0o777 == 0o640
    assert np.load("real.npy").shape == (6, 4)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 5, 4), (6, 0, 4), (6, 5, 0)])
def test_empty_matrices(m, k, n):
    np.save("a.npy", np.ones((m, k)))
    np.save("b.npy", np.ones((k, n)))
    assert multiply() == 0
    assert np.array_equal(np.load("c.npy"), np.zeros((m, n)))


# multiply: dtypes.


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float16, np.float32])
def test_narrower_numbers_are_converted(dtype, capsys):
    b = np.arange(20).reshape(5, 4).astype(dtype)
    np.save("b.npy", b)
    assert multiply() == 0
    assert f"{b.dtype.name}, converted to float64 (exact)" in capsys.readouterr().out
    expected = jo.matmul(jnp.asarray(A), jnp.asarray(b.astype(float)))
    assert np.load("c.npy").tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize("value", [-(2**63), 2**53, -(2**53) - 2, (2**53 - 1) << 10, 0])
def test_integers_that_float64_holds(value):
    operand, _ = matrices.as_operand(np.array([[value]], np.int64), "x")
    assert int(operand[0, 0]) == value


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (2**53 + 1, np.int64),
        (-(2**53) - 1, np.int64),
        (2**63 - 1, np.int64),
        (2**64 - 1, np.uint64),
    ],
)
def test_integers_that_would_lose_bits(value, dtype, capsys):
    np.save("b.npy", np.full((5, 4), value, dtype))
    assert_refused(capsys, multiply(), 2, "b.npy", "integers", "exactly")


def test_byte_order_does_not_matter():
    np.save("b.npy", B.astype(">f8"))
    assert multiply() == 0
    assert np.array_equal(np.load("c.npy"), jo.matmul(jnp.asarray(A), jnp.asarray(B)))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_matrices(dtype, capsys):
    b = (B + 1j).astype(dtype)
    np.save("b.npy", b)
    for a, plan in ((A, f"({len(A)}, {len(B)}) x ({len(B)}, {2 * B.shape[1]}) float64"), (A - 1j, "complex128")):
        np.save("a.npy", a)
        assert multiply() == 0
        assert plan in capsys.readouterr().out
        assert np.load("c.npy").dtype == np.complex128
        assert np.array_equal(np.load("c.npy"), jo.matmul(jnp.asarray(a), jnp.asarray(b)))


@pytest.mark.parametrize(
    "array",
    [
        np.full((5, 4), None),
        np.full((5, 4), "1.0"),
        np.zeros((5, 4), "datetime64[s]"),
        np.zeros((5, 4), [("x", float)]),
        pytest.param(
            np.zeros((5, 4), np.longdouble),
            marks=pytest.mark.skipif(np.longdouble(0).itemsize == 8, reason="no long double here"),
        ),
    ],
    ids=lambda array: array.dtype.name,
)
def test_wrong_dtypes(array, capsys):
    np.save("b.npy", array, allow_pickle=True)
    assert_refused(capsys, multiply(), 2, "b.npy", f"dtype {array.dtype.name} is not supported")
    np.savez("b.npz", x=array)
    assert_refused(capsys, multiply(b="b.npz"), 2, "b.npz", "dtype")


# multiply: shapes and names.


def test_shapes_do_not_match(capsys):
    assert_refused(capsys, multiply("a.npy", "a.npy"), 2, "(6, 5) of a.npy", "do not match")


@pytest.mark.parametrize("shape", [(), (5,), (2, 5, 4)])
def test_not_a_matrix(shape, capsys):
    np.save("b.npy", np.ones(shape))
    assert_refused(capsys, multiply(), 2, "b.npy: a matrix is needed", str(shape))


@pytest.mark.parametrize("name", ["no.npy", "no.npz", "no.npz:key", "no.mtx", "no.mtx.gz"])
def test_missing_file(name, capsys):
    assert_refused(capsys, multiply(b=name), 2, name.split(":")[0], "No such file")


def test_unknown_suffix(capsys):
    assert_refused(capsys, multiply(b="b.txt"), 2, "b.txt", ".npy, .npz, .mtx, .mtx.gz")


def test_a_directory_is_no_matrix(directory, capsys):
    (directory / "d.npy").mkdir()
    assert_refused(capsys, multiply(b="d.npy"), 2, "d.npy", "directory")


def test_npz_keys(capsys):
    np.savez("two.npz", left=A, right=B)
    np.savez("none.npz")
    assert_refused(capsys, multiply(b="two.npz"), 2, "two.npz:KEY", "left, right")
    assert_refused(capsys, multiply(b="two.npz:up"), 2, "no array 'up'", "left, right")
    assert_refused(capsys, multiply(b="none.npz"), 2, "the file holds nothing")


# multiply: damaged files.


def damaged():
    """(name, bytes) of files that are cut short, overwritten, or something else altogether."""
    np.savez("whole.npz", B=B)
    scipy.io.mmwrite("whole.mtx", B)
    with open("b.npy", "rb") as npy, open("whole.npz", "rb") as npz, open("whole.mtx", "rb") as mtx:
        npy, npz, mtx = npy.read(), npz.read(), mtx.read()
    packed = gzip.compress(mtx)
    yield from (("empty" + suffix, b"") for suffix in matrices.INPUT_SUFFIXES)
    yield from (("text" + suffix, b"hello\n") for suffix in matrices.INPUT_SUFFIXES)
    yield "short.npy", npy[:-8]
    yield "header.npy", npy[:12] + b"\xff((" + npy[15:]
    yield "magic.npy", b"\0" + npy[1:]
    yield "short.npz", npz[:-30]
    yield "flipped.npz", npz.replace(B.tobytes()[:8], b"damaged!")
    yield "in_fact.npz", npy
    yield "short.mtx", mtx[: mtx.rindex(b"\n", 0, -1) - 3]
    yield "in_a_number.mtx", mtx[: mtx.rindex(b"E-") + 2]
    yield "in_a_number_too.mtx", mtx[: mtx.rindex(b"E") + 1]
    yield "words.mtx", mtx[: mtx.rindex(b"\n", 0, -1) + 1] + b"beyond 1"
    yield "word.mtx", mtx.replace(b"\n5 4", b"\nfive 4")
    yield "short.mtx.gz", packed[:-12]
    yield "flipped.mtx.gz", packed[:40] + b"damaged!" + packed[48:]


def test_damaged_files(directory, capsys):
    (directory / "c.npy").write_bytes(b"old")
    for name, data in damaged():
        (directory / name).write_bytes(data)
        assert_refused(capsys, multiply(b=name), 2, name, "damaged")
    assert (directory / "c.npy").read_bytes() == b"old"


def test_a_dense_form_beyond_memory(directory, capsys):
    header = "%%MatrixMarket matrix coordinate real general\n"
    (directory / "b.mtx").write_text(f"{header}1000000000 1000000000 1\n1 1 1\n")
    assert_refused(capsys, multiply(b="b.mtx"), 1, "b.mtx: not enough memory")


# multiply: contracts.


def test_contract_reaches_the_product(capsys):
    assert multiply("a.npy", "b.npy", "c.npy", "--contract", "moduli(4)") == 0
    assert "moduli(4)" in capsys.readouterr().out
    expected = jo.matmul(jnp.asarray(A), jnp.asarray(B), contract=jo.Contract.moduli(4))
    assert np.array_equal(np.load("c.npy"), expected)


@pytest.mark.parametrize("contract", ["sloppy", "moduli(99)", "normwise(0.5)", "normwise(", ""])
def test_unknown_contract(contract, capsys):
    with pytest.raises(SystemExit) as stopped:
        multiply("a.npy", "b.npy", "c.npy", "--contract", contract)
    assert stopped.value.code == 2
    assert "argument --contract: " in capsys.readouterr().err


def test_contract_that_this_length_cannot_have(capsys):
    k = 1 << 17
    np.save("a.npy", np.ones((1, k)))
    np.save("b.npy", np.ones((k, 1)))
    status = multiply("a.npy", "b.npy", "c.npy", "--contract", "moduli(2)")
    assert_refused(capsys, status, 2, "moduli")


# Outputs.


@pytest.mark.parametrize("name", ["c.txt", "c", "c.mtx.gz", "no/c.npy", "d.npy"])
def test_impossible_outputs(name, directory, capsys):
    (directory / "d.npy").mkdir()
    assert_refused(capsys, multiply(output=name), 2, name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_directory_that_cannot_be_written(directory, capsys):
    (directory / "d").mkdir(mode=0o500)
    assert_refused(capsys, multiply(output="d/c.npy"), 1, "d/c.npy", "cannot be written")


@pytest.fixture
def small_files():
    """No file may grow beyond 64 KiB: a write fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("suffix", matrices.OUTPUT_SUFFIXES)
def test_old_output_survives_a_write_that_fails(suffix, directory, small_files, capsys):
    np.save("x.npy", RNG.standard_normal((1, 200)).T)
    np.save("y.npy", RNG.standard_normal((1, 200)))
    output = directory / f"c{suffix}"
    output.write_bytes(b"old")
    status = multiply("x.npy", "y.npy", output)
    assert_refused(capsys, status, 1, f"c{suffix}", "File too large")
    assert output.read_bytes() == b"old"
    assert not leftovers(directory)


def test_old_output_survives_a_full_disk(directory, monkeypatch, capsys):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (directory / "c.npy").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    assert_refused(capsys, multiply(), 1, "c.npy", "No space left on device")
    assert (directory / "c.npy").read_bytes() == b"old"
    assert not leftovers(directory)


def test_interrupt_leaves_nothing_behind(directory, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    assert multiply() == 130
    assert not leftovers(directory)
    assert not (directory / "c.npy").exists()


# demo.


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
