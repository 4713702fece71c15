"""NaN, Inf, zeros, subnormals and empty operands."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import ladder_oracle
from compiled import hlo
from oracle import assert_same_bits

INF, NAN = np.inf, np.nan


@jax.jit
def dot(a, b):
    return jo.matmul(a, b)


def ieee(a, b):
    """The class of every output: products in IEEE arithmetic, of signs so that nothing overflows."""

    def signs(x):
        return np.where(np.isfinite(x), np.sign(x), x)

    with np.errstate(invalid="ignore"):
        return (signs(a)[:, :, None] * signs(b)[None]).sum(1)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("k", [5, 16, 131])
def test_one_element_touches_its_own_row_or_column(value, k):  # case 5
    rng = np.random.default_rng(k)
    a, b = generators.operands(rng, 7, k, 6)
    b[2, 3] = 0
    clean = np.asarray(dot(a, b))
    for i, h in ((0, 0), (3, 2), (6, k - 1)):
        x = a.copy()
        x[i, h] = value
        c = np.asarray(dot(x, b))
        expected = clean.copy()
        with np.errstate(invalid="ignore"):
            expected[i] = value * np.sign(b[h])
        assert_same_bits(c, expected)
        assert_same_bits(np.asarray(dot(b.T.copy(), x.T.copy())), expected.T)


def test_every_pair_of_classes():
    """Outputs of two-element rows over all classes of values."""
    values = [NAN, INF, -INF, 0.0, -0.0, 2.0, -3.0, 1e308, 5e-324]
    rows = np.array(list(itertools.product(values, repeat=2)))
    c = np.asarray(dot(rows, rows.T.copy()))
    assert_same_bits(c, ladder_oracle.default_product(rows, rows.T))
    special = ~np.isfinite(rows).all(1)
    mask = special[:, None] | special[None]
    assert_same_bits(c[mask], ieee(rows, rows.T)[mask])


def test_opposite_infinities():  # case 5
    assert np.isnan(jo.dot(np.array([INF, -INF]), np.ones(2)))
    assert jo.dot(np.array([INF, 1.0]), np.array([-1.0, INF])).item() is not None
    assert np.isnan(jo.dot(np.array([INF, 1.0]), np.array([-1.0, INF])))
    assert np.isnan(jo.dot(np.array([INF, 1.0]), np.array([0.0, 1.0])))
    assert jo.dot(np.array([INF, INF]), np.array([2.0, 5e-324])) == INF


@pytest.mark.parametrize("shape", [(3, 4, 5), (17, 33, 9)])
def test_nonfinite_mask_is_that_of_jnp(shape):  # case 5
    m, k, n = shape
    rng = np.random.default_rng(m)
    rows = generators.special_values
    for real in (True, False):
        a, b = generators.operands(rng, m, k, n, rows=rows, columns=rows)
        if not real:
            a, b = a + 1j * rng.standard_normal(a.shape), b + 0j
        ours, theirs = np.asarray(jo.dot(a, b)), np.asarray(jnp.dot(a, b))
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
        if not real:  # jnp.dot spreads a NaN or an Inf of one part to the other on the CPU, jnp's products do not
            theirs = np.asarray((jnp.asarray(a)[:, :, None] * b[None]).sum(1))
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))


def test_overflow_is_not_special():
    a = np.array([[1e300, 1e300], [-1e300, 1e300]])
    assert_same_bits(dot(a, a.T.copy()), np.array([[INF, 0], [0, INF]]))


def test_zeros():
    rng = np.random.default_rng(1)
    a, b = generators.operands(rng, 4, 20, 5, rows=generators.sparse)
    a[1], b[:, 2] = 0, -0.0
    c = np.asarray(dot(a, b))
    assert_same_bits(c[1], np.zeros(5))
    assert_same_bits(c[:, 2], np.zeros(4))
    assert_same_bits(dot(np.zeros((4, 20)), -np.zeros((20, 5))), np.zeros((4, 5)))


def test_subnormals_are_exact():  # case 12
    tiny = np.ldexp(np.arange(1.0, 13).reshape(3, 4), -1074)
    assert_same_bits(dot(tiny, np.eye(4)), tiny)
    assert_same_bits(dot(tiny, np.ldexp(np.eye(4), 1000)), np.ldexp(tiny, 1000))
    assert_same_bits(jax.jit(lambda x: jo.dot(x + 0, np.eye(4)))(np.ldexp(tiny, 100)), np.ldexp(tiny, 100))


@pytest.mark.parametrize("shapes", [((3, 0), (0, 4)), ((5, 3, 0), (5, 0, 4)), ((0,), (0,))])
def test_empty_contraction_is_zero(shapes):  # case 6
    f = jax.jit(jo.matmul)
    operands = [jnp.zeros(s) for s in shapes]
    expected = np.zeros(jnp.matmul(*operands).shape)
    for _ in range(3):
        dirt = [jnp.full(expected.shape, NAN) + 0 for _ in range(50)]
        jax.block_until_ready(dirt)
        del dirt
        assert_same_bits(f(*operands), expected)
    assert "custom-call" not in hlo(jo.matmul, *operands)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((4, 3), (3, 0)), ((0, 2, 3), (0, 3, 4)), ((0, 0), (0, 0))])
def test_empty_results_launch_nothing(shapes):  # case 6
    operands = [jnp.ones(s) for s in shapes]
    assert jo.matmul(*operands).shape == jnp.matmul(*operands).shape
    assert "custom-call" not in hlo(jo.matmul, *operands)
    for grad, operand in zip(jax.grad(lambda a, b: jo.matmul(a, b).sum(), (0, 1))(*operands), operands, strict=True):
        assert_same_bits(grad, np.zeros(operand.shape))
