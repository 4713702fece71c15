"""Reports: what they state is true, and the same under every transformation."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import oracle
from jax_ozaki import Contract
from oracle import assert_same_bits

NORMWISE = Contract.normwise(2)
FIELDS = ("moduli", "achieved", "rungs", "native_outputs", "nonfinite_rows", "nonfinite_columns")


def reporting(contract):
    return lambda a, b: jo.matmul(a, b, contract=contract, return_report=True)


def fields(report):
    return {name: getattr(report, name) for name in FIELDS}


def assert_equal_reports(actual, expected):
    assert actual.contract == expected.contract
    for name in FIELDS:
        x, y = getattr(actual, name), getattr(expected, name)
        assert (x is None) == (y is None), name
        if x is not None:
            np.testing.assert_array_equal(x, y, err_msg=name)


def worst_error(c, a, b):
    """max |C - AB| / (u norm2 norm2), rounded down, in exact arithmetic."""
    squared = oracle.errors(c, a, b) ** 2 << 106
    norms = (oracle.integers(a) ** 2).sum(1)[:, None] * (oracle.integers(b) ** 2).sum(0)
    ratio = max(Fraction(int(e), int(n)) for e, n in zip(squared.flat, norms.flat, strict=True) if n)
    return float(ratio) ** 0.5 * (1 - 1e-15)


@pytest.mark.parametrize(
    "family",
    [
        "fractions",
        "phi=2",
        "phi=4",
        "half rows",
        "ties",
        "wide exponents",
        "tiny tail",
        "float32",
        "integers",
        "sparse",
        "graded",
    ],
)
@pytest.mark.parametrize("c", [1.001, 2.0, "k"])
def test_achieved_bounds_the_error_and_keeps_the_contract(family, c):
    contract = Contract.normwise(c)
    k = 60
    rows = generators.FINITE[family]
    a, b = generators.operands(
        np.random.default_rng(0), 5, k, 4, rows=rows, columns=rows, moduli=contract.modulus_count(k)
    )
    product, report = jax.jit(reporting(contract))(a, b)
    assert_same_bits(product, oracle.product(a, b, contract.modulus_count(k)))
    achieved = float(report.achieved)
    assert worst_error(product, a, b) <= achieved
    assert 1 <= achieved <= (1 + k if c == "k" else c)
    assert report.contract == contract
    assert report.moduli == contract.modulus_count(k)


def test_achieved_is_sharp():
    """Small elements that all round the same way reach the bound, but for sqrt((k - 1) / k)."""
    contract, k = Contract.normwise(1e4), 60
    n = contract.modulus_count(k)
    row = np.full((1, k), 2.0**-60)
    row[0, 0] = 1
    (mu,) = oracle.scales(oracle.statistics(row), n)
    row[0, 1:] = np.ldexp(3.5 + 2.0**-8, -mu)
    assert oracle.scales(oracle.statistics(row), n) == mu
    product, report = reporting(contract)(row, np.ones((k, 1)))
    error = worst_error(product, row, np.ones((k, 1)))
    assert 100 < 0.95 * (report.achieved - 1) < error < report.achieved


def test_exact_operands_achieve_one_rounding():
    a, b = generators.operands(
        np.random.default_rng(1), 5, 30, 4, rows=generators.integers, columns=generators.integers
    )
    assert reporting(NORMWISE)(a, b)[1].achieved == 1


def test_achieved_tells_data_apart():
    """It depends on the operands, not on the contract alone."""
    rng = np.random.default_rng(2)
    flat = generators.operands(rng, 5, 30, 4, rows=generators.fractions)
    single = generators.operands(rng, 5, 30, 4, rows=generators.integers)
    assert reporting(NORMWISE)(*flat)[1].achieved > reporting(NORMWISE)(*single)[1].achieved > 1


@pytest.mark.parametrize("contract", [Contract.moduli(12), Contract.mantissa(53)], ids=str)
def test_contracts_without_a_bound(contract):
    a, b = generators.operands(np.random.default_rng(3), 5, 30, 4)
    _, report = reporting(contract)(a, b)
    assert report.achieved is None
    assert report.moduli == contract.modulus_count(30)
    assert report.native_outputs == 0
    assert str(contract) in str(report)


def test_native():
    a, b = generators.operands(np.random.default_rng(4), 5, 30, 4)
    c, report = reporting(Contract.native())(a, b)
    np.testing.assert_array_equal(c, jnp.matmul(a, b))
    assert (report.moduli, report.native_outputs, report.achieved) == (0, 20, None)


def test_other_dtypes_are_native():
    x = jnp.ones((3, 3), jnp.float32)
    _, report = jo.dot(x, x, return_report=True)
    assert report.contract == Contract.native()
    assert report.native_outputs == 9


def test_nonfinite_rows_and_columns():
    a, b = generators.operands(np.random.default_rng(5), 6, 30, 5)
    a[1, 2], a[1, 3], a[4, 0], b[7, 2] = np.nan, np.inf, -np.inf, np.inf
    _, report = reporting(NORMWISE)(a, b)
    assert (report.nonfinite_rows, report.nonfinite_columns) == (2, 1)
    assert np.isfinite(report.achieved)
    clean = reporting(NORMWISE)(a[[0, 2, 3, 5]], np.delete(b, 2, 1))[1]
    assert report.achieved == clean.achieved
    assert "2 rows" in str(report)
    assert "1 columns" in str(report)


def stack(batch, family="special values"):
    rows = generators.FAMILIES[family]
    return generators.operands(np.random.default_rng(6), 6, 30, 5, batch=(batch,), rows=rows, columns=generators.phi(2))


def loop(a, b):
    reports = [reporting(NORMWISE)(x, y)[1] for x, y in zip(a, b, strict=True)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *reports)


@pytest.mark.parametrize("family", ["special values", "phi=4", "float32"])
def test_vmap_gives_the_reports_of_the_loop(family):
    a, b = stack(4, family)
    for mapped in (jax.vmap(reporting(NORMWISE)), jax.jit(jax.vmap(reporting(NORMWISE)))):
        c, reports = mapped(a, b)
        assert_equal_reports(reports, loop(a, b))
        assert_same_bits(c, np.stack([reporting(NORMWISE)(x, y)[0] for x, y in zip(a, b, strict=True)]))


def test_vmap_with_one_operand_mapped():
    a, b = stack(4)
    same_b = np.broadcast_to(b[0], b.shape)
    _, reports = jax.vmap(reporting(NORMWISE), (0, None))(a, b[0])
    assert_equal_reports(reports, loop(a, same_b))
    _, reports = jax.vmap(reporting(NORMWISE), (None, 1))(a[0], np.moveaxis(b, 0, 1))
    assert_equal_reports(reports, loop(np.broadcast_to(a[0], a.shape), b))


def test_vmap_of_vmap():
    a, b = stack(4)
    nested = jax.vmap(jax.vmap(reporting(NORMWISE)))(a.reshape(2, 2, 6, 30), b.reshape(2, 2, 30, 5))[1]
    assert_equal_reports(jax.tree.map(lambda x: x.reshape(4), nested), loop(a, b))


def test_a_batch_is_one_product_with_one_report():
    a, b = stack(4)
    _, report = reporting(NORMWISE)(a, b)
    each = loop(a, b)
    assert report.nonfinite_rows == each.nonfinite_rows.sum()
    assert report.achieved == each.achieved.max()


def test_jit_scan_and_map():
    a, b = stack(4, "phi=2")
    expected = loop(a, b)
    for i in range(2):
        one = jax.jit(reporting(NORMWISE))(a[i], b[i])[1]
        assert_equal_reports(one, jax.tree.map(lambda x, i=i: x[i], expected))
    _, scanned = jax.lax.scan(lambda c, xy: (c, reporting(NORMWISE)(*xy)[1]), 0, (a, b))
    assert_equal_reports(scanned, expected)
    assert_equal_reports(jax.lax.map(lambda xy: reporting(NORMWISE)(*xy)[1], (a, b)), expected)


def test_reports_do_not_depend_on_blocks():
    a, b = generators.operands(np.random.default_rng(7), 100, 300, 110, rows=generators.phi(2))
    whole = reporting(NORMWISE)(a, b)
    with jo.default_workspace_bytes(350_000):
        blocked = jax.jit(reporting(NORMWISE))(a, b)
    assert_same_bits(blocked[0], whole[0])
    assert_equal_reports(blocked[1], whole[1])


def test_gradient_beside_a_report():
    a, b = generators.operands(np.random.default_rng(8), 4, 20, 3)
    gradient, report = jax.grad(lambda a: (lambda c, r: (c.sum(), r))(*reporting(NORMWISE)(a, b)), has_aux=True)(a)
    assert_same_bits(gradient, jax.grad(lambda a: jo.matmul(a, b, contract=NORMWISE).sum())(a))
    assert_equal_reports(report, reporting(NORMWISE)(a, b)[1])


@pytest.mark.parametrize(
    ("call", "products"),
    [
        (lambda x: jo.einsum("ij,jk,kl->il", x, x, x, return_report=True), 2),
        (lambda x: jo.linalg.multi_dot([x, x, x, x], return_report=True), 3),
        (lambda x: jo.linalg.matrix_power(x, 5, return_report=True), 3),
        (lambda x: jo.einsum("ij->ji", x, return_report=True), 0),
    ],
)
def test_several_products_report_in_order(call, products):
    _, reports = jax.jit(call)(jnp.asarray(np.random.default_rng(9).standard_normal((3, 3))))
    assert isinstance(reports, tuple)
    assert len(reports) == products
    assert all(report.contract == Contract.componentwise() for report in reports)


def test_an_empty_product():
    _, report = reporting(NORMWISE)(jnp.ones((3, 0)), jnp.ones((0, 4)))
    assert report.achieved == 1
    assert report.nonfinite_rows == 0


def test_achieved_keeps_the_contract_of_a_long_row_of_tiny_elements():
    """One element per row sets the norm, which is just large enough to halve the scale."""
    k, n = 2**20, 11
    low, high = 1.0, 2.0**100
    while np.nextafter(low, high) < high:
        middle = (low * high) ** 0.5 if high > 2 * low else (low + high) / 2
        low, high = (low, middle) if Contract.normwise(middle).modulus_count(k) <= n else (middle, high)
    largest = oracle.bound(n)[0] / 2**16  # H scaled to [2^15, 2^16)
    row = np.full((1, k), 2.0**-60)
    row[0, 0] = np.ceil(np.sqrt(largest**2 - k / 128) + 1) / 2**15
    _, report = reporting(Contract.normwise(high))(row, row.T)
    assert report.moduli == n
    assert 0.99 * high < report.achieved < high


def test_fields_do_not_depend_on_flags():
    """64-bit without x64, and no implicit promotion."""
    a, b = generators.operands(np.random.default_rng(10), 5, 30, 4)
    expected = reporting(NORMWISE)(jnp.asarray(a), jnp.asarray(b))[1]
    x, y = jnp.asarray(a), jnp.asarray(b)
    with jax.enable_x64(False):
        _, off = reporting(NORMWISE)(x, y)
    with jax.numpy_dtype_promotion("strict"):
        _, strict = reporting(NORMWISE)(x, y)
        _, other = jo.dot(jnp.ones(3, jnp.float32), jnp.ones(3, jnp.float32), return_report=True)
    for report in (off, strict):
        assert_equal_reports(report, expected)
        assert [f.dtype for f in jax.tree.leaves(report)] == ["int32", "float64", "int64", "int64", "int64"]
    assert other.native_outputs == 1


@pytest.mark.parametrize(
    "contract", [NORMWISE, Contract.mantissa(), Contract.componentwise(), Contract.native()], ids=str
)
def test_text(contract):
    """Numbers of one product, the largest of several, and no number while tracing."""
    a, b = stack(4, "phi=2")
    b[1, 3, 2] = np.nan
    _, one = reporting(contract)(a[0], b[0])
    _, batch = jax.vmap(reporting(contract))(a, b)
    assert "0 rows and 0 columns" in str(one)
    assert "at most 0 rows and at most 1 columns" in str(batch)
    if contract == NORMWISE:
        assert f"at most {max(batch.achieved):.4g} u" in str(batch) and f"at most {one.achieved:.4g} u" in str(one)
    assert str(jax.device_get(batch)) == str(batch)
    assert repr(one) == f"Report({one})" and one == one and one != batch and len({one, batch}) == 2
    assert str(jax.tree.map(lambda x: np.asarray(x, float), one))  # whatever the numbers
    texts = []
    jax.jit(lambda a, b: texts.append(str(reporting(contract)(a, b)[1])))(a[0], b[0])
    jax.vmap(lambda a, b: texts.append(str(reporting(contract)(a, b)[1])) or 0)(a, b)
    texts.append(str(jax.eval_shape(reporting(contract), a[0], b[0])[1]))
    assert all(str(contract) in text for text in texts)
