"""jax-ozaki multiply on real files, and every way they can be refused."""

import errno
import gzip
import os
import resource

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import jax_ozaki as jo
from command_line import RNG, A, B, assert_refused, multiply, save_operands
from jax_ozaki._cli import matrices


@pytest.fixture(autouse=True)
def directory(directory):
    """The working directory with a.npy and b.npy in it."""
    save_operands()
    return directory


def leftovers(directory):
    return [path.name for path in directory.iterdir() if path.name.endswith(".tmp")]


# Formats.


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


# Dtypes.


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


# Shapes and names.


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


# Damaged files.


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


# Contracts.


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
