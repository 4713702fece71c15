"""complex128 products: the definition bit for bit, the contracts' bounds, mixed dtypes, special values, transforms."""

import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import generators
import jax_ozaki as jo
import oracle
from jax_ozaki import Contract, _complex, _field, _moduli, _operand, _reference, _stages
from jax_ozaki._dimensions import Groups
from oracle import assert_same_bits

SIZES = [  # m, k, n
    (1, 1, 1), (7, 31, 3), (8, 20, 16), (2, 3, 5), (17, 17, 1), (9, 8, 15), (1, 70, 20), (12, 2, 17),
]  # fmt: skip
N = 15
CONTRACT = Contract.moduli(N)
NUMBERS = (((1,), (0,)), ((), ()))
RNG = np.random.default_rng(0)
operands = generators.complex_operands
# phi = 4 data, on which a native product differs in nearly every output.
A, B = operands(RNG, 4, 20, 3, rows=generators.phi(4), columns=generators.phi(4))
DA, DB = operands(RNG, 4, 20, 3, rows=generators.phi(4), columns=generators.phi(4))
CT = RNG.standard_normal((4, 3)) + 1j * RNG.standard_normal((4, 3))


@functools.partial(jax.jit, static_argnums=2)
def dot(a, b, contract=CONTRACT):
    return jo.matmul(a, b, contract=contract)


def product(a, b, n=N):
    return oracle.complex_product(a, b, n)


# The definition.


def test_the_tables_are_those_of_the_oracle():
    assert _moduli.COMPLEX_MODULI == oracle.COMPLEX_MODULI
    for p in _moduli.COMPLEX_MODULI:
        factors = [q for q in range(2, p + 1) if p % q == 0 and all(q % f for f in range(2, q))]
        assert all(q % 4 == 1 for q in factors)
        assert (_moduli.imaginary_unit(p) ** 2 + 1) % p == 0
    for n in oracle.COUNTS:
        assert _moduli.bound(n, _moduli.COMPLEX_MODULI) == _moduli.Bound(*oracle.bound(n, oracle.COMPLEX_MODULI))


@pytest.mark.parametrize("n", oracle.COUNTS)
def test_random_problems(n):
    """1,197 problems of every family with every modulus count."""
    rng = np.random.default_rng(n)
    for i in range(3):
        m, k, columns = SIZES[(3 * n + i) % len(SIZES)]
        a, b, pairs = generators.problems(rng, 21, m, k, columns, moduli=n, make=operands)
        c = dot(a, b, Contract.moduli(n))
        for x, y, z, pair in zip(a, b, np.asarray(c), pairs, strict=True):
            assert_same_bits(z, product(x, y, n), f"{pair} {m, k, columns}, {n} moduli")


@pytest.mark.parametrize(
    ("k", "n", "family"),
    [(2**16 + 1, 4, "half rows"), (2**17 + 1, 15, "fractions"), (13000, 2, "half rows"), (513, 18, "phi=2"), (65, 17, "wide exponents"), (640, 16, "tiny tail"), (129, 15, "special values")],
)  # fmt: skip
def test_long_contractions(k, n, family):
    rows = generators.FAMILIES[family]
    a, b = operands(np.random.default_rng(k), 2, k, 2, rows=rows, columns=rows, moduli=n)
    assert_same_bits(dot(a, b, Contract.moduli(n)), product(a, b, n))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_constant_rows_do_not_wrap(n):
    """All 2k parts round up together, in the real part of one column and the imaginary part of another."""
    for k in (8, 500, 4000):
        h, eh = oracle.bound(n, oracle.COMPLEX_MODULI)
        t = math.floor(h * 2.0**eh / math.sqrt(2 * k))
        values = np.maximum(np.arange(t - 4, t + 1), 0) + 0.5 + 2.0**-20
        rows = np.broadcast_to(values[:, None] * (1 + 1j), (5, k))
        columns = np.concatenate([rows, rows.conj()]).T.copy()
        assert_same_bits(dot(rows, columns, Contract.moduli(n)), product(rows, columns, n))


def test_a_real_row_as_a_complex_one_keeps_its_scale_of_parts():
    """Zero imaginary parts change no statistic but the chunks' boundaries: nnz counts parts."""
    a = np.random.default_rng(5).standard_normal((3, 64))
    groups = Groups((), (0,), (1,))
    of_complex, of_real = (jax.jit(lambda x: _reference.stats(_operand.view(x, groups), N)[1])(x) for x in (a + 0j, a))
    np.testing.assert_array_equal(of_complex, of_real)


@pytest.mark.parametrize("n", [2, 18])
def test_the_reference_is_the_definition(n):
    """The stages in pure JAX, as a platform without handlers runs them."""
    a, b, _ = generators.problems(np.random.default_rng(n), 17, 3, 40, 4, moduli=n, make=operands)

    @jax.jit
    def multiply(a, b):
        rows, columns = _operand.Operand(a, "brk"), _operand.Operand(b, "bkr")
        (lhs, lhs_scale, _), (rhs, rhs_scale, _) = (_reference.quantize(x, n) for x in (rows, columns))
        v = _reference.grouped_mma(lhs, rhs, field=rows.field)
        return _reference.combine(v, lhs_scale, rhs_scale, rows, columns, n)

    assert_same_bits(multiply(a, b), product(a, b, n))


@pytest.mark.parametrize(
    ("shape", "n"), [((2, 37, 530), 16), ((3, 5, 17), 18), ((1, 1, 200), 2), ((2, 40, 1), 13)], ids=str
)
def test_stages_equal_the_reference(shape, n):
    """Scales, statistics and residues of every layout, read as it lies."""
    stages = _stages.by_platform()["cpu"]
    rows = generators.special_values if shape[2] == 17 else generators.phi(2)
    x = np.ascontiguousarray(rows(np.random.default_rng(1), (*shape[:2], 2 * shape[2]))).view(np.complex128)
    reference = jax.jit(lambda x: _reference.quantize(_operand.Operand(x, "brk"), n))(x)
    moduli = np.array(_field.COMPLEX.planes(n))[:, None, None]
    for order in ("brk", "bkr", "rbk", "kbr"):
        array = jnp.asarray(np.transpose(x, ["brk".index(axis) for axis in order]))

        @jax.jit
        def run(array, order=order):
            operand = _operand.Operand(array, order)
            quantized = stages.quantize(operand, n)
            return quantized, stages.stats(operand, n), stages.residues(operand, quantized[1], n)

        (residues, *statistics), by_stats, by_scale = run(array)
        for given, also, expected in zip(statistics, by_stats, reference[1:], strict=True):
            np.testing.assert_array_equal(given, expected)
            np.testing.assert_array_equal(given, also)
        np.testing.assert_array_equal(residues % moduli, reference[0] % moduli)
        np.testing.assert_array_equal(residues, by_scale)
        assert not np.asarray(residues)[..., shape[2] :].any()


def test_layouts_batches_and_blocks_change_no_bit():
    a, b = operands(np.random.default_rng(3), 9, 300, 11, batch=(3,), rows=generators.phi(2))
    expected = product(a, b)
    assert_same_bits(dot(a, b), expected)
    a_kr, b_rk = (jnp.asarray(np.ascontiguousarray(np.swapaxes(x, 1, 2))) for x in (a, b))
    assert_same_bits(jo.einsum("bki,bjk->bij", a_kr, b_rk, contract=CONTRACT), expected)
    assert_same_bits(dot(np.swapaxes(a_kr, 1, 2), b), expected)
    for budget in (400_000, 120_000):  # the second in blocks of k
        with jo.default_workspace_bytes(budget):
            assert jo.plan(9, 11, 300, batch=3, dtype=complex, contract=CONTRACT).workspace_bytes <= budget
            assert_same_bits(jax.jit(dot)(a, b), expected)


def test_gram_matrices_are_hermitian():
    x = A[:, :17]
    gram = np.asarray(jo.dot(x, x.conj().T))
    assert_same_bits(gram.real, gram.real.T)
    assert_same_bits(gram.imag + 0.0, -gram.imag.T + 0.0)
    assert (gram.imag.diagonal() == 0).all()


# Functions and dtypes.


def test_conjugation_is_that_of_jnp():
    a, b = operands(RNG, 6, 7, 6)
    b = b.T
    for ours, theirs in ((jo.vdot, jnp.vdot), (jo.vecdot, jnp.vecdot), (jo.inner, jnp.inner), (jo.tensordot, jnp.tensordot)):  # fmt: skip
        np.testing.assert_allclose(ours(a, b), theirs(a, b), rtol=1e-13, atol=1e-13)
    assert_same_bits(jo.vdot(a, b, contract=CONTRACT), product(a.conj().reshape(1, -1), b.reshape(-1, 1))[0, 0])
    np.testing.assert_allclose(jo.einsum("ij,kj->ik", a, b), a @ b.T, rtol=1e-13)
    np.testing.assert_allclose(jo.matvec(a, b[0]), a @ b[0], rtol=1e-13)
    np.testing.assert_allclose(jo.vecmat(a[0], b.T), jnp.vecmat(a[0], b.T), rtol=1e-13)
    np.testing.assert_allclose(jo.linalg.matrix_power(a @ b.T, 3), np.linalg.matrix_power(a @ b.T, 3), rtol=1e-12)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->bik", "ji,kj->ik", "ij,ij->i", "i,j->ij", "bij,kjb->kib"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_real_operand_makes_real_products(equation, side):
    """Both parts are those of the real products, bit for bit; no complex stage runs."""
    sizes = dict(zip("bijk", (2, 5, 40, 3), strict=True))
    rng = np.random.default_rng(side)
    x, y = (generators.phi(2)(rng, tuple(sizes[i] for i in term)) for term in equation.split("->")[0].split(","))
    pair = [x, y]
    z = generators.phi(2)(rng, pair[side].shape)
    pair[side] = pair[side] + 1j * z
    f = functools.partial(jo.einsum, equation, contract=CONTRACT)
    c = np.asarray(jax.jit(f)(*pair))
    imaginary = [x, y]
    imaginary[side] = z
    assert_same_bits(c.real, np.asarray(f(x, y)))
    assert_same_bits(c.imag, np.asarray(f(*imaginary)))
    assert "complex_" not in jax.jit(f).lower(*pair).as_text()


def test_mixed_products_do_not_widen_the_real_operand():
    """An Inf meets the parts of the complex operand, not the zeros that jnp widens with."""
    c = jo.dot(np.array([[np.inf, 1.0]]), np.array([[1 - 2j], [1j]]))
    assert_same_bits(np.asarray(c), np.array([[complex(np.inf, -np.inf)]]))


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex64", "float64", "complex128"])
def test_dtypes_are_those_of_jnp(dtype):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(4) + 1j).astype(np.complex128), (10 * rng.standard_normal(4)).astype(dtype)
    for x, y in ((a, b), (b, a)):
        c = jo.dot(x, y)
        assert c.dtype == jnp.dot(x, y).dtype == np.complex128
        np.testing.assert_allclose(c, jnp.dot(x, y), rtol=1e-13)
        assert_same_bits(jo.dot(x, y), jo.dot(x.astype(c.dtype), y) if y is a else jo.dot(x, y.astype(c.dtype)), dtype)


def test_the_primitive_takes_one_dtype():
    from jax_ozaki import _primitive

    with pytest.raises(TypeError, match="complex128 and rhs float64"):
        _primitive.bind(A, B.real, dimension_numbers=NUMBERS, contract=CONTRACT, workspace_bytes=2**30)


# Contracts.


def test_a_contract_that_complex_moduli_cannot_keep():
    with pytest.raises(
        ValueError, match=r"mantissa\(70\) cannot be kept for a contraction of length k=20 with 20 moduli"
    ):
        jo.dot(A, B, contract=Contract.mantissa(70))


@pytest.mark.parametrize("bits", [10, 24, 40, 53])
def test_mantissa_keeps_every_part(bits):
    """Both parts of every element to 2^-bits of the row's largest part."""
    contract = Contract.mantissa(bits)
    for k in (1, 30, 1000):
        n = contract.modulus_count(k, complex)
        rng = np.random.default_rng(k)
        constant = np.full((4, 2 * k), 1.0) * (2 - rng.random((4, 1)))
        constant[:, 0] = 1 / 3
        for rows in (constant, rng.standard_normal((4, 2 * k))):
            scales = oracle.scales(oracle.statistics(rows), n, oracle.COMPLEX_MODULI)
            kept = oracle.quantize(rows, scales)
            for row, integers, mu in zip(rows, kept, scales, strict=True):
                exact = oracle.integers(row)
                assert abs((integers << (oracle.UNIT - int(mu))) - exact).max() << bits <= abs(exact).max()


def holds_normwise(c, a, b, factor):
    """|C - AB| <= factor u norm2(a_i) norm2(b_j) in exact arithmetic, absolute values of complex numbers."""
    squared = sum(error**2 for error in oracle.complex_errors(c, a, b))
    norms = (oracle.integers(oracle.parts(a)) ** 2).sum(1)[:, None] * (oracle.integers(oracle.parts(b.T)) ** 2).sum(1)
    bound = Fraction(factor) ** 2
    return (squared * bound.denominator << 106) <= bound.numerator * norms


@pytest.mark.parametrize("c", [1.001, 2.0, 1e6, "sqrt_k", "k"])
def test_normwise_bound(c):
    contract = Contract.normwise(c)
    families = {
        name: generators.FINITE[name] for name in ("fractions", "thirds", "phi=2", "half rows", "ties", "graded")
    }
    for k in (1, 3, 70, 200):
        n = contract.modulus_count(k, complex)
        factor = {"sqrt_k": 1 + math.isqrt(k * 10**20) / 10**10, "k": 1 + k}.get(c, c)
        rng = np.random.default_rng(k)
        a, b, pairs = generators.problems(rng, len(families), 4, k, 3, moduli=n, families=families, make=operands)
        for x, y, z, pair in zip(a, b, np.asarray(dot(a, b, contract)), pairs, strict=True):
            assert holds_normwise(z, x, y, factor).all(), (pair, k, n)


def test_normwise_is_not_wasteful():
    rows = generators.half_rows
    for c, k in ((2.0, 200), ("k", 200)):
        n = Contract.normwise(c).modulus_count(k, complex)
        factor = 1 + k if c == "k" else c
        a, b = operands(np.random.default_rng(1), 8, k, 8, rows=rows, columns=rows, moduli=n - 2)
        assert not holds_normwise(product(a, b, n - 2), a, b, factor).all()


def test_default_contract_holds_for_long_contractions():
    assert [Contract.mantissa(53).modulus_count(k, complex) for k in (1, 700, 10**4, 10**6)] == [15, 16, 17, 18]


def test_plan_and_report():
    contract = Contract.normwise(2)
    plan = jo.plan(4, 3, 20, dtype=complex, contract=contract)
    n = contract.modulus_count(20, complex)
    assert (plan.moduli, plan.int8_gemms, plan.dtype) == (n, 2 * n, "complex128")
    assert plan.log2_product == pytest.approx(math.log2(math.prod(oracle.COMPLEX_MODULI[:n])))
    x = B.copy()
    x[3, 1] = complex(1, np.nan)
    c, report = jo.dot(A, x, contract=contract, return_report=True)
    assert_same_bits(c, product(A, x, n))
    assert (int(report.moduli), int(report.nonfinite_rows), int(report.nonfinite_columns)) == (n, 0, 1)
    assert 1 < float(report.achieved) <= 2
    _, mixed = jo.dot(A.real, x, contract=contract, return_report=True)
    assert int(mixed.moduli) == contract.modulus_count(20)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bkj->bik", "jib,kj->bik", "ij,ij->"])
def test_embedding_equals_its_real_product(equation):
    """What contracts without complex moduli multiply: rows [a_r, a_i], columns [b_r, -b_i] and [b_i, b_r]."""
    sizes = dict(zip("bijk", (2, 5, 30, 3), strict=True))
    rng = np.random.default_rng(2)
    a, b = (np.ascontiguousarray(generators.phi(1)(rng, (*(sizes[i] for i in term), 2))).view(np.complex128)[..., 0] for term in equation.split("->")[0].split(","))  # fmt: skip
    numbers = {"ij,jk->ik": NUMBERS, "bij,bkj->bik": (((2,), (2,)), ((0,), (0,))), "jib,kj->bik": (((0,), (1,)), ((), ())), "ij,ij->": (((1, 0), (1, 0)), ((), ()))}[equation]  # fmt: skip

    def real(lhs, rhs, dimension_numbers, out_sharding):
        assert lhs.dtype == rhs.dtype == jnp.float64
        return jo.dot_general(lhs, rhs, dimension_numbers, out_sharding=out_sharding, contract=Contract.normwise(2))

    def fn(a, b):
        return _complex.embedded(a, b, numbers, None, real)

    c = np.asarray(fn(a, b))
    np.testing.assert_allclose(c, lax.dot_general(a, b, numbers), rtol=1e-12)
    if equation == "ij,jk->ik":
        n = Contract.normwise(2).modulus_count(2 * sizes["j"])
        for part, columns in zip((c.real, c.imag), oracle.columns_of_parts(b), strict=True):
            assert_same_bits(part, oracle.product(oracle.parts(a), columns, n))
    check_grads(fn, (a, b), 1, ["rev"], rtol=1e-5)


# Special values.


def test_every_pair_of_classes():
    """Outputs of rows of one and two elements over classes of parts: each part as the sum of jnp's products has it.

    (jnp.dot is stricter or laxer with the device: on the CPU it spreads a NaN from one part to the other.)
    """
    values = [np.nan, np.inf, -np.inf, 0.0, 2.0, -3.0]
    numbers = np.array([complex(*x) for x in itertools.product(values, repeat=2)])
    singles = numbers[:, None]
    pairs = np.stack([numbers[np.random.default_rng(0).integers(0, 36, 80)] for _ in range(2)], axis=1)
    for rows in (singles, pairs):
        columns = rows.T.copy()
        c = np.asarray(dot(rows, columns))
        assert_same_bits(c, product(rows, columns))
        theirs = np.asarray(jax.jit(lambda x, y: (x[:, :, None] * y[None]).sum(1))(rows, columns))
        special = ~np.isfinite(rows).all(1)
        mask = special[:, None] | special[None]
        for part, of_theirs in ((c.real, theirs.real), (c.imag, theirs.imag)):
            assert_same_bits(part[mask], of_theirs[mask])
        np.testing.assert_array_equal(np.isfinite(c), np.isfinite(np.asarray(jnp.dot(rows, columns))))


def test_empty_products():
    assert_same_bits(jo.dot(np.zeros((2, 0), complex), np.zeros((0, 3), complex)), np.zeros((2, 3), complex))
    assert jo.dot(np.zeros((0, 2), complex), np.zeros((2, 3), complex)).shape == (0, 3)


# Transforms.


def test_native_products_differ_on_this_data():
    """Else equality of bits below would say nothing."""
    assert (np.asarray(jnp.dot(A, B)) != product(A, B)).mean() > 0.5


def test_jvp_and_vjp_are_bilinear():
    c, tangent = jax.jvp(dot, (A, B), (DA, DB))
    assert_same_bits(c, product(A, B))
    assert_same_bits(tangent, product(DA, B) + product(A, DB))
    da, db = jax.vjp(dot, A, B)[1](CT)
    assert_same_bits(da, product(CT, B.T))
    assert_same_bits(db, product(A.T, CT))


def test_gradients_are_those_of_jnp():
    def loss(multiply, a, b):
        c = multiply(a, b)
        return (jnp.abs(c) ** 2).sum() + multiply(c.conj().T, c).real.sum()

    a, b = operands(RNG, 3, 5, 4)
    for x, y in ((a, b), (a.real, b), (a, b.imag)):
        ours, theirs = (jax.grad(functools.partial(loss, f), (0, 1))(x, y) for f in (jo.matmul, jnp.matmul))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.dtype == other.dtype
            np.testing.assert_allclose(mine, other, rtol=1e-12)
        # The rules are those of any contract, the default's programs for the first operands enough.
        check_grads(jo.matmul if x is a and y is b else dot, (x, y), 2)


def test_vmap_scan_and_jit():
    a, b = operands(RNG, 4, 6, 4, batch=(3,))
    expected = product(a, b)
    assert_same_bits(jax.vmap(dot)(a, b), expected)
    assert_same_bits(jax.vmap(dot, (0, None))(a, b[0]), np.stack([product(x, b[0]) for x in a]))
    assert_same_bits(jax.vmap(dot, (None, 2))(a[0], np.moveaxis(b, 0, 2)), np.stack([product(a[0], y) for y in b]))
    assert_same_bits(lax.scan(lambda c, xs: (c, dot(*xs)), 0, (a, b))[1], expected)
    mixed = jax.vmap(dot, (0, None))(a, b[0].real)
    assert_same_bits(np.asarray(mixed).real, np.stack([oracle.product(x.real, b[0].real, N) for x in a]))


def test_prepared_operands():
    contract = CONTRACT
    lhs, rhs = jo.prepare(A, "lhs", contract), jo.prepare(B, "rhs", contract)
    expected = product(A, B)
    for x, y in ((lhs, B), (A, rhs), (lhs, rhs)):
        assert_same_bits(jax.jit(jo.matmul)(x, y), expected)
    assert_same_bits(jax.grad(lambda b: jo.matmul(jo.prepare(A, "lhs", contract), b).real.sum())(B), product(A.T, np.ones((4, 3), complex)))  # fmt: skip
    real = jo.prepare(A.real, "lhs", contract)
    c = np.asarray(jo.matmul(real, B))
    assert_same_bits(c.real, oracle.product(A.real, B.real, N))
    assert_same_bits(c.imag, oracle.product(A.real, B.imag, N))
    for other in (B.real, B.real.astype(np.float32)):
        assert_same_bits(jo.matmul(lhs, other), product(A, other + 0j))
    stack = jo.prepare(np.stack([A, DA]), "lhs", contract)
    assert_same_bits(jax.vmap(jo.matmul, (0, None))(stack, B), np.stack([expected, product(DA, B)]))


def test_sharded_products_have_the_same_bits():
    mesh = jax.make_mesh((4,), ("x",))
    a, b = operands(np.random.default_rng(9), 8, 24, 4, rows=generators.phi(2))
    sharded = jax.device_put(a, jax.NamedSharding(mesh, jax.P("x", None)))
    c = jax.jit(dot)(sharded, b)
    assert_same_bits(c, product(a, b))
