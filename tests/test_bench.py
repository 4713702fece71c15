"""The benchmark: what it measures, its reference, and its own accuracy check."""

import json
import re
import sys
from fractions import Fraction
from itertools import chain, repeat
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
import oracle
from jax_ozaki.__main__ import main
from jax_ozaki._bench import measure, methods, pipelines, promise, reference, results, timing
from jax_ozaki._bench.operands import Shape, operands
from jax_ozaki._bench.timing import Turn, Variant, interval, take_turns

pytestmark = pytest.mark.usefixtures("directory")

QUICK = ("--seconds", "0.001", "--rounds", "2")
ABLATIONS = ("grouped-sync", "partial-crt-sync", "full-fused", "local-prologue")
LEFT_OUT = ("cublas-fixed", "cublas-dynamic", "partial-crt(5)", *ABLATIONS)
METHODS = ("fast(5)", "staged(5)", "grouped(5)", "contracts", *LEFT_OUT)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The file of a run over two shapes and two phi."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    shapes = ("--sizes", "24", "--shapes", "8,17,150", "--phi", "0.5", "2")
    assert main(["bench", *shapes, "--methods", *METHODS, *QUICK, "--json", str(path)]) == 0
    return path


# Results.


def test_every_row_has_every_column(measured):
    found = results.read(measured)
    assert found["rows"]
    for row in found["rows"]:
        assert list(row) == list(results.COLUMNS)
        assert row["guarantee"]
    assert {"ffi_hash", "jax", "jaxlib", "device", "date", "driver", "cublas"} <= set(found["meta"])


def test_methods_shapes_and_phis_are_measured(measured):
    rows = results.read(measured)["rows"]
    found = {(row["method"], row["contract"], row["m"], row["n"], row["k"], row["phi"]) for row in rows}
    contracts = ["native", "moduli(5)", "moduli(5)", "moduli(5)", "mantissa(53)", "normwise(2)"]
    named = list(zip(["native", "fast", "staged", "grouped", "contract", "contract"], contracts, strict=True))
    expected = {(*x, *mnk, phi) for x in named for mnk in ((24, 24, 24), (8, 17, 150)) for phi in (0.5, 2)}
    assert expected <= found
    assert len(found) == len(rows)


def test_columns_agree_with_one_another(measured):
    for row in results.read(measured)["rows"]:
        assert row["within_contract"] and 0 < row["share"] <= 1
        assert row["ms_min"] <= row["ms"] <= row["ms_max"] and row["turns"] in (1, 2)
        both = pytest.approx((row["ms_max"] - row["ms_min"]) / row["ms"])
        assert row["spread"] == (both if row["turns"] == 2 else None)
        assert row["ratio"] == pytest.approx(row["native_ms"] / row["ms"])
        assert row["tflops"] == pytest.approx(2e-9 * row["m"] * row["n"] * row["k"] / row["ms"])
        certified = row["contract"] in ("componentwise(sqrt_k)", "exact")
        assert row["timed_phi"] == (row["phi"] if certified else 0.5)
        if row["method"] == "native":
            assert row["native_outputs"] == row["m"] * row["n"] and row["int8_floor_ms"] is None
        else:
            assert row["native_outputs"] == 0 and row["int8_floor_ms"] > 0
            contract = jo.Contract.parse(row["contract"])
            most = contract.modulus_count(row["k"])
            assert 0 < row["moduli"] <= most if contract.certified else row["moduli"] == most


def test_pipelines_of_one_contract_have_one_error(measured):
    rows = [row for row in results.read(measured)["rows"] if row["contract"] == "moduli(5)"]
    errors = {}
    for row in rows:
        errors.setdefault((row["k"], row["phi"]), set()).add(row["max_abs_error"])
    assert len(errors) == 4
    assert all(len(of_one) == 1 for of_one in errors.values())
    staged = next(row for row in rows if row["method"] == "staged")
    assert list(staged["stages_ms"]) == [
        "quantize_lhs",
        "quantize_rhs",
        "balance",
        "int8_products",
        "reduce",
        "combine",
    ]


def test_what_is_left_out_is_named_with_its_cause(measured):
    causes = {x["method"]: x["cause"] for x in results.read(measured)["left_out"]}
    assert "jax runs on cpu" in causes["cublas-fixed(55)"] and "jax runs on cpu" in causes["cublas-dynamic"]
    assert "only the CUDA kernels" in causes["partial-crt(5)"]
    for name in ABLATIONS:
        assert "jax runs on cpu" in causes[f"{name}(14)"]


def test_table_on_the_terminal(capsys):
    assert main(["bench", "--sizes", "8", "--phi", "1", "--methods", "fast(9)", "full-fused", *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no bar away from a terminal
    assert "  fast    moduli(9)" in captured.out and "  native  native" in captured.out
    assert "left out:\n  full-fused(14): " in captured.out


def test_bar_on_a_terminal_only(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["bench", "--sizes", "8", "--phi", "1", "--methods", "native", *QUICK]) == 0
    error = capsys.readouterr().err
    assert "] 0/3 " in error and "n = 8, phi = 1: errors" in error and "2/3 " in error
    assert error.endswith("\r\033[K")


def test_batches(capsys):
    path = "batched.json"
    assert (
        main(
            [
                "bench",
                "--sizes",
                "8",
                "--batch",
                "3",
                "--phi",
                "1",
                "--methods",
                "grouped(5)",
                "staged(5)",
                *QUICK,
                "--json",
                path,
            ]
        )
        == 0
    )
    assert {row["batch"] for row in json.loads(Path(path).read_text())["rows"]} == {3}
    assert "n = 3 x 8" in capsys.readouterr().out


def test_spent_budget_begins_nothing_new():
    arguments = ["--sizes", "8", "9", "--phi", "1", "2", "--methods", "native", "--budget-seconds", "1e-9"]
    assert main(["bench", *arguments, "--json", "r.json"]) == 0
    found = json.loads(Path("r.json").read_text())
    assert [(row["n"], row["phi"]) for row in found["rows"]] == [(8, 1.0)]
    assert {x["shape"] for x in found["left_out"]} == {"8", "8, phi = 2", "9", "rounds from 2 on"}
    assert all("budget" in x["cause"] for x in found["left_out"])


def test_a_budget_spent_by_the_first_shape(monkeypatch):
    """All are compiled, and nothing of the others is begun."""
    passed = iter([False, False])
    monkeypatch.setattr(measure.Deadline, "passed", lambda _: next(passed, True))
    arguments = ["--sizes", "8", "9", "--phi", "1", "2", "--methods", "native", "--budget-seconds", "60", *QUICK]
    assert main(["bench", *arguments, "--json", "r.json"]) == 0
    found = json.loads(Path("r.json").read_text())
    assert {(row["n"], row["phi"], row["ms"] is None) for row in found["rows"]} == {(8, 1.0, False), (8, 2.0, False)}
    assert [x["shape"] for x in found["left_out"]] == ["9, phi = 1", "9, phi = 2", "rounds from 2 on", "8"]


def test_budget_shortens_turns():
    variants = [Variant(lambda: None)] * 100
    turn = measure.Deadline(measure.Effort(seconds=0.1, rounds=5, budget=60)).turn(0.5, variants)
    assert 0.03 < turn < 0.5 * 60 / (1.5 * 100 * 5) + 1e-9
    assert measure.Deadline(measure.Effort(seconds=0.1, rounds=5)).turn(0.5, variants) == 0.1
    long = [Variant(lambda: None, seconds=10.0)]
    assert measure.Deadline(measure.Effort(seconds=0.1, rounds=5, budget=60)).turn(0.5, variants + long) < turn


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sizes", "0"],
        ["--shapes", "4,4"],
        ["--phi", "-1"],
        ["--dtype", "float32"],
        ["--seconds", "nan"],
    ],
)
def test_usage_errors(arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    assert stopped.value.code == 2


def test_unknown_method(capsys):
    assert main(["bench", "--sizes", "8", "--methods", "magic"]) == 2
    error = capsys.readouterr().err
    assert "'magic' is no method" in error and "partial-crt" in error


@pytest.mark.parametrize("name", ["staged(99)", "native(3)", "cublas-fixed(0)", "moduli(2)", "native"])
def test_methods_that_are_named(name):
    chosen = methods.parse([name])
    found, left_out = methods.make(chosen, Shape(4, 4, 2**17))
    assert len(found) + len(left_out) == len(chosen) > 0
    assert bool(found) == (name == "native")


def test_the_guide_explains_every_column_and_method():
    guide = (Path(__file__).parents[1] / "docs" / "performance.md").read_text()
    for name in results.COLUMNS:
        assert f"`{name}`" in guide
    for name in set(methods.KINDS) - {"contract"}:
        assert re.search(rf"`{name}[(`]", guide)


# Timing.


def test_every_variant_takes_every_turn():
    calls = []
    variants = [Variant(lambda i=i: calls.append(i), wait=lambda x: x, products=i + 1) for i in range(3)]
    take_turns(variants, seconds=1e-6, rounds=4)
    assert all(len(variant.ms) == 4 and min(variant.ms) > 0 for variant in variants)
    assert set(calls) == {0, 1, 2}


@pytest.fixture
def clocked(monkeypatch):
    """Makes a program of which every call takes the next of the seconds given, the last one for ever."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def make(*seconds, known=0.0):
        calls = chain(seconds, repeat(seconds[-1]))

        def call():
            now[0] += next(calls)

        return Variant(call, wait=lambda x: x, seconds=known)

    return make


def test_a_pause_does_not_move_a_turn(clocked):
    variant = clocked(*[0.002] * 7, 0.05, 0.002)
    Turn(variant, samples=8, calls=1, long=False).take()
    assert variant.ms == [pytest.approx(2)]


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_calls_that_wait_for_their_results(clocked, samples):
    variant = clocked(0.03)
    Turn(variant, samples, calls=1, long=False).take()
    assert variant.ms == [pytest.approx(30)]


@pytest.mark.parametrize(
    ("seconds", "known", "turn"),
    [
        ([0.0002], 0.0, (16, 16, False)),  # 16 calls are a sample
        ([9, 0.002], 0.0, (12, 2, False)),  # the first call compiles
        ([0.03], 0.0, (2, 1, False)),
        ([0.06], 0.0, (1, 1, True)),
        ([0.002], 0.5, (12, 2, False)),  # a pause made an earlier call look long
        ([99], 1.5, (1, 1, True)),  # planned without a call
    ],
)
def test_the_plan_of_a_turn(seconds, known, turn, clocked):
    planned = Turn.of(clocked(*seconds, known=known), 0.05)
    assert (planned.samples, planned.calls, planned.long) == turn


@pytest.mark.parametrize(("n", "cut"), [(1, 0), (2, 0), (3, 0), (6, 0), (8, 0), (9, 1), (12, 2)])
def test_interval_of_a_median(n, cut):
    """Against all the ways in which n values lie below and above the true median."""
    assert interval(list(range(n, 0, -1))) == (1 + cut, n - cut)
    below = [ways.bit_count() for ways in range(2**n)]
    covered, narrower = (sum(x < count < n - x for count in below) / 2**n for x in (cut, cut + 1))
    assert cut == 0 or covered >= 0.95
    assert narrower < 0.95


def test_too_long_products_are_left_out():
    arguments = ["--sizes", "16", "32", "--phi", "1", "--methods", "fast(5)", *QUICK, "--longest", "1e-9"]
    assert main(["bench", *arguments, "--json", "r.json"]) == 0
    found = json.loads(Path("r.json").read_text())
    assert {row["n"] for row in found["rows"]} == {16}
    assert {(x["method"], x["shape"]) for x in found["left_out"]} == {
        (name, "32, phi = 1") for name in ("native native", "fast moduli(5)")
    }
    assert all("--longest" in x["cause"] for x in found["left_out"])


def test_what_fails_while_timed_takes_no_further_turn(monkeypatch):
    plan, planned = Turn.of, []

    def failing(variant, seconds):
        planned.append(variant)
        if len(planned) == 3:  # after the INT8 and the native product
            raise jax.errors.JaxRuntimeError("out of memory")
        return plan(variant, seconds)

    monkeypatch.setattr(Turn, "of", failing)
    arguments = ["--sizes", "8", "--phi", "1", "--methods", "fast(5)", "grouped(5)", *QUICK]
    assert main(["bench", *arguments, "--json", "r.json"]) == 0
    found = json.loads(Path("r.json").read_text())
    assert [row["method"] for row in found["rows"] if row["ms"] is None] == ["fast"]
    assert [x["cause"] for x in found["left_out"]] == ["its times: out of memory"]


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
    assert main(["bench", "--sizes", "8", "--phi", "1", "--methods", "native", *QUICK]) == 1
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
    arguments = ["--sizes", "8", "--phi", "0.5", "--methods", "fast(14)", *QUICK, "--json", "r.json"]
    assert main(["bench", *arguments]) == 1
    captured = capsys.readouterr()
    assert "fast breaks its contract moduli(14) at (m, n, k) = (8, 8, 8), phi = 0.5" in captured.err
    assert captured.out.count("BROKEN") == 1
    verdicts = {row["method"]: row["within_contract"] for row in results.read(Path("r.json"))["rows"]}
    assert verdicts == {"native": True, "fast": False}


def test_a_wrong_kernel_fails(monkeypatch):
    """A factor of two inside the program, not only in what it returned."""
    combine = pipelines._Stages._combine
    monkeypatch.setattr(pipelines._Stages, "_combine", lambda *args: 2 * combine(*args))
    assert main(["bench", "--sizes", "8", "--phi", "0.5", "--methods", "grouped(14)", *QUICK]) == 1


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


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--help"])
    assert stopped.value.code == 0
    assert "usage: python -m jax_ozaki bench" in capsys.readouterr().out
