"""jo.explain: what limits a given product, in words; complex ones by the float64 product that theirs comes down to."""

import jax
import numpy as np
import pytest

import generators
import jax_ozaki as jo
from jax_ozaki import Contract

M, K, N = 20, 30, 25


def complex_operands():
    parts = [generators.operands(np.random.default_rng(seed), M, K, N) for seed in (1, 2)]
    return tuple(x + 1j * y for x, y in zip(*parts, strict=True))


def test_outputs_of_nan_and_inf_are_not_called_certified():
    a, b = generators.operands(np.random.default_rng(9), M, K, N)
    a[2, 0], b[3, 5], b[4, 5] = np.nan, np.inf, np.nan
    first, last = jo.explain(a, b).splitlines()
    certified, classified = (M - 1) * (N - 1), M + N - 1
    assert f"{certified} of 500 outputs certified by coarse magnitudes" in first
    assert f"{classified} of 500 outputs classified" in first and "error at most" in first
    assert last == "1 rows and 1 columns hold NaN or Inf: their outputs are classified."
    first = jo.explain(np.full((2, 3), np.nan), np.ones((3, 4))).splitlines()[0]
    assert "8 of 8 outputs classified" in first and "error" not in first and "certified" not in first


def test_a_row_of_the_scale_of_fewer_moduli_is_said_to_have_it():
    """Against a column that holds its tiny element alone it rounds too much."""
    a = np.random.default_rng(4).standard_normal((3, 2048), np.float32).astype(float)
    a[1, 7] *= 2.0**-40
    column = np.zeros((2048, 1))
    column[7] = 1 / 3
    text = jo.explain(a, column)
    assert "row 1 spans " in text and " and 13 moduli keep the upper " in text


@pytest.mark.parametrize("contract", [Contract.componentwise(), Contract.exact()], ids=str)
def test_certified_complex_products_are_explained_by_their_parts(contract):
    a, b = complex_operands()
    text = jo.explain(a, b, contract)
    assert f"({M}, {K}) x ({K}, {N})" in text and "of 1000 real and imaginary parts of outputs" in text
    _, report = jo.dot(a, b, contract=contract, return_report=True)
    assert f"{int(report.moduli)} moduli multiplied" in text or str(int(report.rungs[-1])) in text
    assert f"error at most {float(report.achieved):.4g} u" in text
    # A row and a column far out, named as the complex operands count them.
    a[17] = np.ldexp(a[17].real, np.where(np.arange(K) < 15, 140, -150)) * (1 + 1j)
    b[:15] = 0
    assert "row 17 spans" in jo.explain(a, b, contract)
    a, b = complex_operands()
    b[:, 21] = np.ldexp(b[:, 21].real, np.where(np.arange(K) < 15, 140, -150)) * (1 + 1j)
    a[:, :15] = 0
    assert "column 21 spans" in jo.explain(a, b, contract)


def test_moduli_of_complex_products():
    a, b = complex_operands()
    b[7, 4] = np.nan
    first, last = jo.explain(a, b, Contract.mantissa()).splitlines()
    assert first.startswith(f"mantissa(53), ({M}, {K}) x ({K}, {N}): ")
    assert f"{Contract.mantissa().modulus_count(K, complex)} moduli" in first
    assert last.startswith("0 rows and 1 columns")


@pytest.mark.parametrize("side", [0, 1])
def test_a_real_and_a_complex_operand(side):
    operands = list(complex_operands())
    operands[side] = operands[side].real
    a, b = operands
    assert "1000 of 1000 real and imaginary parts of outputs certified" in jo.explain(a, b)
    # Only the other operand has parts; an element of its last row or column spoils one of them.
    row = b.T if side == 0 else a
    row[-1] = row[-1].real + 1j * np.ldexp(row[-1].real, np.where(np.arange(K) < 15, 140, -150))
    name = "column 24" if side == 0 else "row 19"
    assert f"{name} spans" in jo.explain(a, b, Contract.mantissa(20))


def test_other_dtypes():
    a, b = np.full((2, 3), 0.5), np.full((3, 4), 1 / 3)
    for dtype in (np.float32, np.int8):
        assert jo.explain(a.astype(dtype), b) == jo.explain(a.astype(dtype).astype(float), b)
    assert "16 of 16 real and imaginary parts" in jo.explain(a, b.astype(np.complex64) * (1 + 1j))
    with pytest.raises(TypeError, match="float32 and int32: one of them has to be float64"):
        jo.explain(a.astype(np.float32), b.astype(np.int32))


def test_arguments_that_jax_cannot_hold_are_named():
    a, wide = np.ones((2, 3)), np.ones((3, 4), np.longdouble)
    with pytest.raises(TypeError, match=f"b has dtype {wide.dtype}: a dtype of JAX is needed"):
        jo.explain(a, wide)
    with jax.enable_x64(False), pytest.raises(TypeError, match="JAX makes every float64 a float32"):
        jo.explain(a, a.T)


def test_prepared_operands_are_named():
    prepared = jo.prepare(np.ones((2, 3)), contract=Contract.moduli(9))
    with pytest.raises(TypeError, match=r"a is prepared: its array, a\.array, under moduli\(9\)"):
        jo.explain(prepared, np.ones((3, 2)))
