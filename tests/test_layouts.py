"""Any layout gives the bits of the contiguous problem, and folded transposes copy nothing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
import ladder_oracle
from compiled import calls, hlo
from oracle import assert_same_bits


def as_matrices(x, batch, rows, k):
    sizes = [int(np.prod([x.shape[i] for i in axes])) for axes in (batch, rows, k)]
    return np.transpose(x, (*batch, *rows, *k)).reshape(sizes)


def definition(a, b, dimension_numbers):
    """dot_general by the oracle, through NumPy transposes."""
    (ka, kb), (ba, bb) = dimension_numbers
    ra = [i for i in range(a.ndim) if i not in (*ka, *ba)]
    rb = [i for i in range(b.ndim) if i not in (*kb, *bb)]
    x, y = as_matrices(a, ba, ra, ka), as_matrices(b, bb, rb, kb)
    c = ladder_oracle.default_product(x, np.swapaxes(y, 1, 2))
    return c.reshape([a.shape[i] for i in ba] + [a.shape[i] for i in ra] + [b.shape[i] for i in rb])


@pytest.mark.parametrize(
    ("a", "b", "numbers"),
    [
        ((4, 5), (5, 6), (((1,), (0,)), ((), ()))),
        ((5, 4), (5, 6), (((0,), (0,)), ((), ()))),
        ((5, 4), (6, 5), (((0,), (1,)), ((), ()))),
        ((4, 5), (6, 5), (((1,), (1,)), ((), ()))),
        ((4, 3, 5), (6, 5, 3), (((2,), (1,)), ((1,), (2,)))),
        ((3, 4, 5), (5, 3, 6), (((2,), (0,)), ((0,), (1,)))),
        ((5, 4, 3), (6, 5, 3), (((0,), (1,)), ((2,), (2,)))),
        ((2, 3, 4, 5), (5, 3, 4, 2), (((1, 3), (1, 0)), ((0,), (3,)))),
        ((2, 3, 4, 5), (3, 5, 4, 2), (((3, 1), (1, 0)), ((2, 0), (2, 3)))),
        ((4, 5), (6, 7), (((), ()), ((), ()))),
        ((3, 4), (5, 3), (((), ()), ((0,), (1,)))),
        ((1, 4, 1, 5), (5, 1, 6), (((3, 0), (0, 1)), ((), ()))),
        ((2,) * 8, (2,) * 8, (((7, 2, 4), (0, 3, 6)), ((1, 5), (7, 2)))),
        ((2,) * 8, (2,) * 8, (((0, 1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1, 0)), ((), ()))),
        ((7,), (7, 8, 9), (((0,), (0,)), ((), ()))),
    ],
    ids=lambda v: str(v).replace(" ", ""),
)
def test_dimension_numbers(a, b, numbers):  # case 20
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(a), rng.standard_normal(b)
    assert_same_bits(jax.jit(lambda a, b: jo.dot_general(a, b, numbers))(a, b), definition(a, b, numbers))


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_stored_in_any_order(order):
    """A transpose in the program, whether folded or not, on either side."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 5, 16)), rng.standard_normal((3, 16, 7))
    inverse = np.argsort(order)
    stored = [np.ascontiguousarray(np.transpose(x, order)) for x in (a, b)]
    c = jax.jit(lambda a, b: jo.matmul(jnp.transpose(a, inverse), jnp.transpose(b, inverse)))(*stored)
    assert_same_bits(c, ladder_oracle.default_product(a, b))
    assert_same_bits(jo.matmul(*(jnp.transpose(x, inverse) for x in stored)), ladder_oracle.default_product(a, b))


@pytest.mark.parametrize("offset", [(1, 1), (0, 3), (2, 5)])
def test_odd_offsets_and_strides(offset):  # case 7
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((12, 40)), rng.standard_normal((40, 12))
    i, j = offset
    for a, b in ((x[i:, j:], y[j:, i:]), (x[::-1, j::2], y[j::2, ::3]), (x[i::2, :33], y[33:0:-1, i:])):
        a, b = a[:, : min(a.shape[1], b.shape[0])], b[: min(a.shape[1], b.shape[0])]
        assert_same_bits(jo.dot(a, b), ladder_oracle.default_product(a, b))


def transposed(fn, shape, cotangent):
    return jax.linear_transpose(fn, jax.ShapeDtypeStruct(shape, jnp.float64))(cotangent)[0]


COPIES = {
    "a.T b": (lambda a, b: jo.dot(a.T, b), (24, 40), (24, 56)),
    "a b.T": (lambda a, b: jo.dot(a, b.T), (40, 24), (56, 24)),
    "a.T b.T": (lambda a, b: jo.matmul(a.T, b.T), (24, 40), (56, 24)),
    "swapaxes": (lambda a, b: jo.matmul(jnp.swapaxes(a, 1, 2), b), (3, 24, 40), (3, 24, 56)),
    "matrix_transpose": (lambda a, b: jo.matmul(a, jnp.matrix_transpose(b)), (3, 40, 24), (3, 56, 24)),
    "einsum": (lambda a, b: jo.einsum("ki,jk->ij", a, b), (24, 40), (56, 24)),
    "einsum batch": (lambda a, b: jo.einsum("bki,bjk->bij", a, b), (3, 24, 40), (3, 56, 24)),
    "first axis": (lambda a, b: jo.tensordot(a, b, (0, 0)), (24, 5, 40), (24, 56)),
    "batch in the middle": (lambda a, b: jo.einsum("ibk,jbk->bij", a, b), (40, 3, 24), (56, 3, 24)),
    "gram": (lambda a, b: jo.dot(a, a.T) + b[0, 0], (40, 24), (1, 1)),
    "transpose in the left": (lambda ct, b: transposed(lambda a: jo.dot(a, b), (40, 24), ct), (40, 56), (24, 56)),
    "transpose in the right": (lambda a, ct: transposed(lambda b: jo.dot(a, b), (24, 56), ct), (40, 24), (40, 56)),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_folded_transposes_copy_nothing(name):
    fn, *shapes = COPIES[name]
    text = hlo(fn, *(jnp.ones(s) for s in shapes))
    assert calls(text, "quantize")
    moved = re.findall(r"= f64\[[\d,]+\]\{[\d,]*\} (?:transpose|copy)\(|%(?:transpose|copy)\S*fusion", text)
    assert not moved


def test_a_transpose_shared_with_a_quantization_costs_one():
    """x x.T quantizes the rows of x once."""
    assert len(calls(hlo(lambda x: jo.dot(x, x.T), jnp.ones((40, 24))), "quantize")) == 1
