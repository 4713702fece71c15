"""The benchmark's reference and its own accuracy check: a wrong result makes a run fail."""

from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
import oracle
from benching import bench
from jax_ozaki._bench import methods, pipelines, promise, reference, results
from jax_ozaki._bench.operands import Shape, operands

pytestmark = pytest.mark.usefixtures("directory")


# The reference, against exact integers.


@pytest.mark.parametrize("phi", [0, 4])
@pytest.mark.parametrize("shape", [Shape(7, 9, 65), Shape(5, 6, 1, batch=3)], ids=str)
def test_reference_is_right_to_twice_float64(shape, phi):
    a, b = operands(shape, phi)
    of = reference.Reference(a, b)
    arrays = [np.asarray(x).reshape(-1, *x.shape[-2:]) for x in (a, b, of.high, of.low, of.magnitudes.absolute)]
    for x, y, high, low, scale in zip(*arrays, strict=True):
        difference = abs(
            (oracle.integers(high) + oracle.integers(low) << oracle.UNIT) - oracle.integers(x) @ oracle.integers(y)
        )
        allowed = oracle.integers(scale) << oracle.UNIT >> 98
        assert (difference <= allowed).all()


def test_errors_are_those_of_exact_arithmetic():
    a, b = operands(Shape(6, 8, 40), 1.0)
    c = jnp.matmul(a, b)
    of = reference.Reference(a, b)
    found = of.errors(c, promise.native().bound(of.magnitudes))
    exact = oracle.errors(np.asarray(c), np.asarray(a), np.asarray(b))
    products = abs(oracle.integers(np.asarray(a)) @ oracle.integers(np.asarray(b)))
    unit = Fraction(1, 2 ** (2 * oracle.UNIT))
    absolute = np.vectorize(lambda x: float(int(x) * unit))(exact)
    assert found["max_abs_error"] == pytest.approx(absolute.max(), rel=1e-9)
    assert found["rms_error"] == pytest.approx(np.sqrt((absolute**2).mean()), rel=1e-9)
    relative = max(Fraction(int(e), int(p)) for e, p in zip(exact.ravel(), products.ravel(), strict=True))
    assert found["max_rel_error"] == pytest.approx(float(relative), rel=1e-9)
    scaled = absolute / (abs(np.asarray(a)) @ abs(np.asarray(b))) * 2**53
    assert found["max_error_u"] == pytest.approx(scaled.max(), rel=1e-9)


def test_large_products_are_sampled(monkeypatch):
    monkeypatch.setattr(reference, "FULL", 30)
    monkeypatch.setattr(reference, "SAMPLED_ROWS", 5)
    a, b = operands(Shape(31, 4, 9), 0.5)
    of = reference.Reference(b.T, a.T)
    assert of.rows == slice(None) and of.columns.tolist()[:3] == [0, 1, 2] and of.columns.tolist()[-2:] == [28, 30]
    assert of.high.shape == (4, 30)
    of = reference.Reference(a, b)
    assert of.rows.tolist() == [0, 7, 15, 22, 30] and of.high.shape == (5, 4)
    c = jnp.matmul(a, b)
    bound = promise.native().bound(of.magnitudes)
    assert of.errors(c, bound)["share"] <= 1
    assert of.errors(c.at[15, 2].mul(2), bound)["share"] > 1e6


def test_reference_notices_a_native_product_that_is_not_exact(monkeypatch, capsys):
    add = reference._add_product

    def inexact(high, low, left, right, scale):
        return add(high, low, left, right * (1 + 2.0**-50), scale)

    monkeypatch.setattr(reference, "_add_product", inexact)
    assert bench("--sizes", "8", "--phi", "1", "--methods", "native") == 1
    assert "not exact here" in capsys.readouterr().err


@pytest.mark.parametrize("axis", [-1, -2])
def test_rows_and_columns_have_their_own_factors(axis):
    """Uniform numbers alone are multiples of 2^-53."""
    x = np.asarray(operands(Shape(50, 50, 50), 0)[0 if axis == -1 else 1])
    on_grid = x * 2**53 == np.rint(x * 2**53)
    assert on_grid.mean() < 0.6


# The accuracy check.

TAMPERED = {
    "twice one output": lambda c: c.at[3, 2].mul(2),
    "one output zero": lambda c: c.at[0, 5].set(0),
    "all doubled": lambda c: 2 * c,
    "a row lost": lambda c: c.at[4].set(0),
    "NaN": lambda c: c.at[1, 1].set(jnp.nan),
    "one wrong in the middle": lambda c: c.at[2, 2].mul(1 + 2.0**-20),
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
@pytest.mark.parametrize("contract", ["native", "moduli(14)", "mantissa(53)", "normwise(2)"])
def test_a_wrong_result_is_out_of_bounds(contract, tamper):
    contract = jo.Contract.parse(contract)
    a, b = operands(Shape(8, 8, 8), 0.5)
    of = reference.Reference(a, b)
    bound = promise.of_contract(contract, 8).bound(of.magnitudes)
    c = jo.matmul(a, b, contract=contract)
    assert of.errors(c, bound)["share"] <= 1
    assert of.errors(tamper(c), bound)["share"] > 2


@pytest.mark.parametrize("tamper", ["twice one output", "one output zero"])
def test_a_wrong_result_fails(tamper, monkeypatch, capsys):
    honest = methods.Method.product

    def product(self, a, b):
        c = honest(self, a, b)
        return TAMPERED[tamper](c) if self.name == "fast" else c

    monkeypatch.setattr(methods.Method, "product", product)
    arguments = ["--sizes", "8", "--phi", "0.5", "--methods", "fast(14)", "--json", "r.json"]
    assert bench(*arguments) == 1
    captured = capsys.readouterr()
    assert "fast breaks its contract moduli(14) at (m, n, k) = (8, 8, 8), phi = 0.5" in captured.err
    assert captured.out.count("BROKEN") == 1
    verdicts = {row["method"]: row["within_contract"] for row in results.read(Path("r.json"))["rows"]}
    assert verdicts == {"native": True, "fast": False}


def test_a_wrong_kernel_fails(monkeypatch):
    """A factor of two inside the program, not only in what it returned."""
    combine = pipelines._Stages._combine
    monkeypatch.setattr(pipelines._Stages, "_combine", lambda *args: 2 * combine(*args))
    assert bench("--sizes", "8", "--phi", "0.5", "--methods", "grouped(14)") == 1


@pytest.mark.parametrize(
    "contract", ["moduli(3)", "moduli(15)", "mantissa(20)", "mantissa(53)", "normwise(2)", "normwise(k)"]
)
@pytest.mark.parametrize("phi", [0, 2])
def test_bounds_hold_and_are_no_wider_than_needed(contract, phi):
    contract = jo.Contract.parse(contract)
    a, b = operands(Shape(16, 16, 64), phi)
    of = reference.Reference(a, b)
    stated = promise.of_contract(contract, 64)
    share = of.errors(jo.matmul(a, b, contract=contract), stated.bound(of.magnitudes))["share"]
    assert 1e-4 < share <= 1


def test_moduli_keep_the_bits_that_are_stated():
    for n in (5, 9, 14, 15):
        bits = promise.of_contract(jo.Contract.moduli(n), 1000).bits
        assert jo.Contract.mantissa(bits).modulus_count(1000) <= n < jo.Contract.mantissa(bits + 1).modulus_count(1000)


# A method without a contract is no method.


def test_no_method_without_a_contract():
    with pytest.raises(TypeError, match="not measured without a stated contract"):
        methods.Method("fast", None, jnp.matmul, 0)
    with pytest.raises(ValueError, match="states a contract"):
        promise.Promise("", "none", promise.componentwise(1))
    with pytest.raises(ValueError, match="states a contract"):
        promise.Promise("mine", "", promise.componentwise(1))
    with pytest.raises(ValueError, match="states a contract"):
        promise.Promise("mine", "trust me", None)
