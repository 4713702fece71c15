"""Properties of the definition on whatever hypothesis finds; equality is bit for bit."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import jax_ozaki as jo
import oracle
from oracle import assert_same_bits

M, K, N = 3, 5, 4
MODULI = (2, 5, 15, 20)

# Values of every magnitude, and some of a narrow range, where roundings and ties interact.
finite = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True)
narrow = st.integers(-(2**12), 2**12).map(lambda i: i / 2**6)
ordinary = st.floats(-(2.0**60), 2.0**60, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 2.0**-60)
anything = st.one_of(st.floats(), narrow, st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan]))
counts = st.sampled_from(MODULI)


def matrices(elements, rows=M, columns=K):
    return arrays(np.float64, (rows, columns), elements=elements)


@partial(jax.jit, static_argnums=2)
def dot(a, b, n=15):
    return jo.matmul(a, b, contract=jo.Contract.moduli(n))


def run(a, b, n=15):
    return np.asarray(dot(a, b, n))


@given(matrices(st.one_of(finite, narrow)), matrices(st.one_of(finite, narrow), K, N), counts)
def test_definition(a, b, n):
    assert_same_bits(run(a, b, n), oracle.product(a, b, n))


@given(matrices(anything), matrices(anything, K, N), counts)
def test_definition_with_special_values(a, b, n):
    assert_same_bits(run(a, b, n), oracle.product(a, b, n))


@given(matrices(anything), matrices(anything, K, N), st.permutations(range(K)))
def test_the_order_of_a_contraction_within_a_chunk_is_free(a, b, order):
    assert_same_bits(run(a[:, order], b[order]), run(a, b))


@given(matrices(anything), matrices(anything, K, N), st.permutations(range(M)), st.permutations(range(N)))
def test_rows_and_columns_are_independent(a, b, rows, columns):
    assert_same_bits(run(a[rows], b[:, columns]), run(a, b)[rows][:, columns])


@given(matrices(anything), matrices(anything), matrices(anything, K, N), st.integers(0, M - 1))
def test_other_rows_do_not_matter(a, other, b, i):
    mixed = other.copy()
    mixed[i] = a[i]
    assert_same_bits(run(mixed, b)[i], run(a, b)[i])


@given(matrices(anything), matrices(anything, K, N), counts)
def test_the_transpose_is_the_mirrored_product(a, b, n):
    assert_same_bits(run(b.T.copy(), a.T.copy(), n), run(a, b, n).T)


@given(matrices(anything), matrices(anything, K, N))
def test_signs_move_through(a, b):
    c = run(a, b)
    negated = run(-a, b)
    assert_same_bits(np.where(c == 0, 0, negated), np.where(c == 0, 0, -c))
    assert_same_bits(run(-a, -b), c)


@given(matrices(ordinary), matrices(ordinary, K, N), st.integers(-200, 200), st.integers(-200, 200))
def test_powers_of_two_move_through(a, b, e, f):
    assert_same_bits(run(np.ldexp(a, e), np.ldexp(b, f)), np.ldexp(run(a, b), e + f))


@given(matrices(finite), matrices(finite, K, N))
def test_zero_padding_changes_nothing(a, b):
    wide, tall = np.zeros((M, 2 * K)), np.zeros((2 * K, N))
    wide[:, ::2], tall[::2] = a, b
    assert_same_bits(run(wide, tall), run(a, b))


@given(matrices(narrow), matrices(narrow, K, N))
def test_short_operands_are_exact(a, b):
    assert_same_bits(run(a, b), np.float64((oracle.integers(a) @ oracle.integers(b)) / 2 ** (2 * oracle.UNIT)) + 0.0)


@given(matrices(finite), matrices(finite, K, N), counts)
def test_no_sum_wraps(a, b, n):
    """The scales keep |X| <= P (1/2 - 2^-8): a property of the definition itself."""
    x, _, _ = oracle.integer_product(a, b, n)
    assert 256 * abs(x).max() <= 127 * math.prod(oracle.MODULI[:n])


@given(matrices(ordinary), matrices(ordinary, K, N))
def test_normwise(a, b):
    c = np.asarray(jo.matmul(a, b, contract=jo.Contract.normwise(2)))
    norms = (oracle.integers(a) ** 2).sum(1)[:, None] * (oracle.integers(b) ** 2).sum(0)
    assert ((oracle.errors(c, a, b) ** 2 << 106) <= 4 * norms).all()


@given(arrays(np.float64, (6, M, K), elements=anything), arrays(np.float64, (6, K, N), elements=anything))
@settings(max_examples=25)
def test_batch_vmap_and_loop_agree(a, b):
    batched = np.asarray(dot(a, b))
    assert_same_bits(jax.vmap(dot)(a, b), batched)
    for x, y, c in zip(a, b, batched, strict=True):
        assert_same_bits(run(x, y), c)


@given(matrices(anything), matrices(anything, K, N))
@settings(max_examples=25)
def test_prepared_operands_agree(a, b):
    contract = jo.Contract.moduli(15)
    assert_same_bits(jo.matmul(jo.prepare(a, "lhs", contract), jnp.asarray(b)), run(a, b))
