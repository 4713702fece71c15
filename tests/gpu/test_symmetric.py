"""Products with itself: half of the tiles where the result is symmetric, and the bits of the whole product always."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import oracle
from jax_ozaki import Contract, _rungs, _stages
from jax_ozaki._operand import Operand
from oracle import assert_same_bits

SIZES = (1, 2, 31, 127, 128, 129, 200, 257, 384, 515)
FAMILIES = ("fractions", "phi=4", "wide exponents", "ties", "subnormals", "near overflow", "sparse", "special values")
OTHER_NAN = np.array(0x7FF8000000000001).view(np.float64)


@pytest.fixture
def handlers(monkeypatch):
    """Those of the GPU, that look for symmetry at every size."""
    found = _stages.by_platform()["cuda"]
    monkeypatch.setattr(found, "_symmetry", "always")
    return found


def symmetric(rng, n, family="fractions", batch=(), moduli=15):
    x = generators.FAMILIES[family](rng, (*batch, n, n), moduli)
    upper = np.triu(np.ones((n, n), bool))
    return np.where(upper, x, np.swapaxes(x, -1, -2))


@partial(jax.jit, static_argnames="contract")
def product(x, y, contract):
    """Of what may be two arrays."""
    return jo.matmul(x, y, contract=contract)


@pytest.mark.parametrize("n", SIZES)
def test_symmetric_to_the_bit_and_nearly(agree, handlers, n):
    """One element that differs anywhere, if only in the sign of a zero or the payload of a NaN, makes a difference."""
    rng = np.random.default_rng(n)
    x = symmetric(rng, n)
    ends = [i for i in (0, 1, 31, 32, 126, 127, 128, 129, n // 2, n - 2, n - 1) if 0 <= i < n]
    places = {(i, j) for i, j in [*zip(ends, reversed(ends), strict=True), *itertools.pairwise(ends)]}
    places |= {(i, j) for i, j in rng.integers(0, n, (3, 2))}
    cases = [x]
    for i, j in sorted((int(i), int(j)) for i, j in places):
        for this, other in (
            (np.nextafter(x[j, i], np.inf), x[j, i]),
            (0.0, -0.0),
            (np.nan, np.nan),
            (np.nan, OTHER_NAN),
            (np.inf, np.inf),
            (-np.inf, np.inf),
            (np.inf, 1.0),
        )[:: 1 if n < 200 else 3]:
            changed = x.copy()
            changed[i, j], changed[j, i] = this, other
            cases.append(changed)

    def square(x):
        return jo.dot(x, x, contract=Contract.moduli(14))

    run = jax.jit(square)
    for case in cases:
        assert_same_bits(np.asarray(run(case)), np.asarray(product(case, case.copy(), Contract.moduli(14))))
    agree(square, cases[0])
    agree(square, cases[-1])


MODULI = (2, 9, 13, 15, 16, 18, 20, 15)


@pytest.mark.parametrize(("family", "moduli"), list(zip(FAMILIES, MODULI, strict=True)))
def test_families_in_batches(agree, handlers, family, moduli):
    """A batch is symmetric where all of its matrices are."""
    rng = np.random.default_rng(moduli)
    x = symmetric(rng, 200, family, batch=(3,), moduli=moduli)
    last = x.copy()
    last[2, 150, 7] = 1.0
    multiply = partial(jo.einsum, contract=Contract.moduli(moduli))

    def square(x):
        return multiply("bij,bjk->bik", x, x), multiply("bji,bkj->bki", x, x)

    for operand in (x, last):
        c, transposed = agree(square, operand)
        assert_same_bits(c, transposed)
        assert_same_bits(c[2, :2, :2], oracle.product(operand[2, :2], operand[2, :, :2], moduli))
    agree(lambda x: multiply("ibj,jbk->bik", x, x), np.ascontiguousarray(np.swapaxes(x, 0, 1)))


@pytest.mark.parametrize("layout", ["bik,bjk->bij", "bki,bkj->bij", "ibk,jbk->bij"])
@pytest.mark.parametrize("sizes", [(1, 1, 5), (2, 129, 70), (1, 500, 1000), (3, 300, 31)], ids=str)
def test_a_matrix_and_its_transpose(agree, handlers, layout, sizes):
    b, i, k = sizes
    rng = np.random.default_rng(i)
    extents = {"b": b, "i": i, "k": k}
    x = generators.FAMILIES["special values"](rng, [extents[axis] for axis in layout[:3]])
    contract = Contract.moduli(15)
    c = agree(lambda x: jo.einsum(layout, x, x, contract=contract), x)
    assert_same_bits(np.swapaxes(c, 1, 2), c)
    rows = np.transpose(x, [layout.index(axis) for axis in "bik"])
    assert_same_bits(c[0, :3, :3], oracle.product(rows[0, :3], rows[0, :3].T, 15))


@pytest.mark.parametrize("contract", [Contract.componentwise("sqrt_k"), Contract.exact()], ids=str)
@pytest.mark.parametrize("strassen", ["never", "always"])
@pytest.mark.parametrize("n", [3, 130, 400])
def test_certified(agree, handlers, monkeypatch, contract, strassen, n):
    monkeypatch.setattr(handlers, "_strassen", strassen)
    rng = np.random.default_rng(n)
    x = symmetric(rng, n, "phi=4", batch=(2,))
    x[0] = symmetric(rng, n, "special values")
    other = x.copy()
    other[1, n - 1, 0] += 1

    def square(x):
        return jo.matmul(x, x, contract=contract)

    for operand in (x, other):
        agree(square, operand)
    agree(lambda x: jo.einsum("bik,bjk->bij", x, x, contract=contract), other[:, :, : n // 2].copy())


@pytest.mark.parametrize("n", [2, 129, 258, 401])
def test_strassen_where_it_is_not_symmetric(agree, handlers, monkeypatch, n):
    monkeypatch.setattr(handlers, "_strassen", "always")
    x = symmetric(np.random.default_rng(n), n, "phi=4", batch=(2,))

    def square(x):
        return jo.matmul(x, x, contract=Contract.moduli(15))

    agree(square, x)
    x[1, -1, 0] = np.nan
    agree(square, x)
    agree(square, x[::-1].copy())


def test_transformations(agree, handlers):
    rng = np.random.default_rng(0)
    x = symmetric(rng, 150, batch=(2,))

    def power(x):
        return jo.linalg.matrix_power(x / 10, 5, contract=Contract.normwise(2))

    agree(jax.vmap(power), x)
    agree(lambda x: jax.vjp(lambda x: jo.dot(x, x, contract=Contract.normwise(2)), x)[1](x)[0], x[0])
    agree(jo.emulate(lambda x: jax.lax.fori_loop(0, 4, lambda i, p: 2 * p - p @ p, x / 50), min_size=0), x[0])


def computed_tiles(handlers, x):
    """The map of the tiles of x x, and how many of them the matrix product had on its list."""

    @jax.jit
    def run(x):
        operand = Operand(x, "brk")
        residues, _, _ = handlers.quantize(operand, 2)
        tiles = handlers.tiles_of_itself(operand, Operand(x, "bkr"))
        types = (jax.ShapeDtypeStruct(residues.shape, jnp.uint8), handlers._flag_scratch(1, *x.shape[1:]))
        _, listed = handlers._call("symmetric_mma", types, residues, residues, tiles)
        return tiles, jax.lax.bitcast_convert_type(listed[:4], jnp.int32)

    tiles, listed = run(x[None])
    return np.asarray(tiles)[0], int(listed)


def test_half_of_the_tiles_are_computed(handlers):
    n = 2048
    x = symmetric(np.random.default_rng(0), n)
    tiles, half = computed_tiles(handlers, x)
    side = _rungs.tiles(n)
    assert np.array_equal(tiles, np.triu(np.ones((side, side), int)))
    x[n - 1, 0] = 2 * x[0, n - 1]
    tiles, all_of_them = computed_tiles(handlers, x)
    assert np.all(tiles == 3)
    assert 0.5 * all_of_them < half < 0.6 * all_of_them


def test_the_other_tiles_are_mirrored(handlers):
    """Whatever stands in the tiles that are not computed."""
    n = 400
    x = symmetric(np.random.default_rng(1), n, "special values")
    lhs, rhs = Operand(x[None], "brk"), Operand(x[None], "bkr")
    (residues, scale, _), (columns, _, _) = (handlers.quantize(operand, 15) for operand in (lhs, rhs))
    v = np.asarray(handlers.grouped_mma(residues, columns)).copy()
    tiles = handlers.tiles_of_itself(lhs, rhs)
    tile = np.arange(n) // _rungs.TILE
    v[:, :, (tile[:, None] > tile[None, :]).nonzero()[0], (tile[:, None] > tile[None, :]).nonzero()[1]] = 77
    c = handlers.symmetric_combine(jnp.asarray(v), scale, scale, lhs, rhs, tiles, 15)
    assert_same_bits(np.asarray(c)[0], np.asarray(product(x, x.copy(), Contract.moduli(15))))
