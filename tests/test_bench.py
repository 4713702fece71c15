"""The benchmark: what it measures, what it leaves out, and what it prints."""

import json
import re
import sys
from pathlib import Path

import jax
import pytest

import jax_ozaki as jo
from benching import bench
from jax_ozaki.__main__ import main
from jax_ozaki._bench import effort, methods, results
from jax_ozaki._bench.operands import Shape
from jax_ozaki._bench.timing import Turn, Variant

pytestmark = pytest.mark.usefixtures("directory")

ABLATIONS = ("grouped-sync", "partial-crt-sync", "full-fused", "local-prologue")
LEFT_OUT = ("cublas-fixed", "cublas-dynamic", "partial-crt(5)", *ABLATIONS)
METHODS = ("fast(5)", "staged(5)", "grouped(5)", "contracts", *LEFT_OUT)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The file of a run over two shapes and two phi."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    shapes = ("--sizes", "24", "--shapes", "8,17,150", "--phi", "0.5", "2")
    assert bench(*shapes, "--methods", *METHODS, "--json", path) == 0
    return path


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
    assert bench("--sizes", "8", "--phi", "1", "--methods", "fast(9)", "full-fused") == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no bar away from a terminal
    assert "  fast    moduli(9)" in captured.out and "  native  native" in captured.out
    assert "left out:\n  full-fused(14): " in captured.out


def test_bar_on_a_terminal_only(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert bench("--sizes", "8", "--phi", "1", "--methods", "native") == 0
    error = capsys.readouterr().err
    assert "] 0/3 " in error and "n = 8, phi = 1: errors" in error and "2/3 " in error
    assert error.endswith("\r\033[K")


def test_batches(capsys):
    path = "batched.json"
    assert bench("--sizes", 8, "--batch", 3, "--phi", 1, "--methods", "grouped(5)", "staged(5)", "--json", path) == 0
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
    monkeypatch.setattr(effort.Deadline, "passed", lambda _: next(passed, True))
    arguments = ["--sizes", "8", "9", "--phi", "1", "2", "--methods", "native", "--budget-seconds", "60"]
    assert bench(*arguments, "--json", "r.json") == 0
    found = json.loads(Path("r.json").read_text())
    assert {(row["n"], row["phi"], row["ms"] is None) for row in found["rows"]} == {(8, 1.0, False), (8, 2.0, False)}
    assert [x["shape"] for x in found["left_out"]] == ["9, phi = 1", "9, phi = 2", "rounds from 2 on", "8"]


def test_budget_shortens_turns():
    variants = [Variant(lambda: None)] * 100
    turn = effort.Deadline(effort.Effort(seconds=0.1, rounds=5, budget=60)).turn(0.5, variants)
    assert 0.03 < turn < 0.5 * 60 / (1.5 * 100 * 5) + 1e-9
    assert effort.Deadline(effort.Effort(seconds=0.1, rounds=5)).turn(0.5, variants) == 0.1
    long = [Variant(lambda: None, seconds=10.0)]
    assert effort.Deadline(effort.Effort(seconds=0.1, rounds=5, budget=60)).turn(0.5, variants + long) < turn


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


def test_too_long_products_are_left_out():
    arguments = ["--sizes", "16", "32", "--phi", "1", "--methods", "fast(5)", "--longest", "1e-9"]
    assert bench(*arguments, "--json", "r.json") == 0
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
    arguments = ["--sizes", "8", "--phi", "1", "--methods", "fast(5)", "grouped(5)"]
    assert bench(*arguments, "--json", "r.json") == 0
    found = json.loads(Path("r.json").read_text())
    assert [row["method"] for row in found["rows"] if row["ms"] is None] == ["fast"]
    assert [x["cause"] for x in found["left_out"]] == ["its times: out of memory"]


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--help"])
    assert stopped.value.code == 0
    assert "usage: python -m jax_ozaki bench" in capsys.readouterr().out
