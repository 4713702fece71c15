"""The benchmark: its reference, its own accuracy check, its files, figures and profiles."""

import ctypes
import json
import os
import re
import sys
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
import oracle
from jax_ozaki.__main__ import main
from jax_ozaki._bench import cublas, driver, measure, methods, ncu, pipelines, plots, promise, reference, results
from jax_ozaki._bench.operands import Shape, operands
from jax_ozaki._bench.timing import Variant, take_turns
from jax_ozaki._bench.unavailable import Unavailable
from jax_ozaki._cli import plot

QUICK = ("--seconds", "0.001", "--rounds", "2")
CONTRACTS = ["moduli(5)", "mantissa(53)", "normwise(2)", "componentwise(sqrt_k)", "exact"]
LEFT_OUT = ("cublas-fixed", "cublas-dynamic", "partial-crt(5)", "full-fused", "local-prologue")
METHODS = ("fast(5)", "staged(5)", "grouped(5)", "contracts", *LEFT_OUT)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
        assert row["ms_min"] <= row["ms"] <= row["ms_max"]
        assert row["ratio"] == pytest.approx(row["native_ms"] / row["ms"])
        assert row["tflops"] == pytest.approx(2e-9 * row["m"] * row["n"] * row["k"] / row["ms"])
        assert row["timed_phi"] == 0.5
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
    assert "not part of this version" in causes["full-fused"] and "local-prologue" in causes["local-prologue"]


def test_table_on_the_terminal(capsys):
    assert main(["bench", "--sizes", "8", "--phi", "1", "--methods", "fast(9)", "full-fused", *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no bar away from a terminal
    assert "fast           moduli(9)" in captured.out and "native" in captured.out
    assert "left out:\n  full-fused: " in captured.out


def test_bar_on_a_terminal_only(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["bench", "--sizes", "8", "--phi", "1", "--methods", "native", *QUICK]) == 0
    error = capsys.readouterr().err
    assert "] 0/1 " in error and "n = 8, phi = 1" in error
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
    assert [x["shape"] for x in found["left_out"]] == ["8, phi = 2", "9"]
    assert all("budget" in x["cause"] for x in found["left_out"])


def test_budget_shortens_turns():
    turn = measure.Deadline(measure.Effort(seconds=0.1, rounds=5, budget=60)).turn(0.5, 100)
    assert 0.03 < turn < 0.5 * 60 / (1.5 * 100 * 5) + 1e-9
    assert measure.Deadline(measure.Effort(seconds=0.1, rounds=5)).turn(0.5, 100) == 0.1


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
    monkeypatch.setattr(reference, "FULL_ROWS", 30)
    monkeypatch.setattr(reference, "SAMPLED_ROWS", 5)
    a, b = operands(Shape(31, 4, 9), 0.5)
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


@pytest.mark.parametrize("column", ["contract", "guarantee"])
def test_no_figure_of_a_row_without_a_contract(column, measured, capsys):
    found = json.loads(measured.read_text())
    found["rows"][3][column] = None
    Path("r.json").write_text(json.dumps(found))
    assert main(["plot", "r.json"]) == 2
    assert "row 3" in capsys.readouterr().err


# Figures.


def test_figures(measured, directory, capsys):
    from matplotlib.image import imread

    assert main(["plot", str(measured), "-o", "figures", "--format", "png", "svg"]) == 0
    for name in plots.FIGURES:
        image = imread(f"figures-{name}.png")
        assert min(image.shape[:2]) > 300 and image[..., :3].std() > 0.02
        assert (directory / f"figures-{name}.svg").read_text().startswith("<?xml")
        assert f"{name}: figures-{name}.png" in capsys.readouterr().out or name != "speed"


def test_only_equal_contracts_share_a_panel(measured):
    figure = plots.speed(results.read(measured))
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in panels] == CONTRACTS
    lines = [{line.get_label() for line in axis.get_lines()} for axis in panels]
    assert lines[0] == {"native (its own contract)", "fast", "staged", "grouped"}
    assert all(of_panel == {"native (its own contract)", "contract"} for of_panel in lines[1:])


def test_figures_need_results(measured, capsys):
    (path := Path("r.json")).write_text("{}")
    assert main(["plot", "r.json"]) == 2
    path.write_text("[1")
    assert main(["plot", "r.json"]) == 2
    assert main(["plot", "missing.json"]) == 2
    found = json.loads(measured.read_text())
    del found["rows"][0]["rms_error"]
    path.write_text(json.dumps(found))
    assert main(["plot", "r.json"]) == 2
    error = capsys.readouterr().err
    for words in ("schema", "not a JSON file", "No such file", "row 0 has no rms_error"):
        assert words in error


def test_nothing_to_draw(capsys):
    assert main(["bench", "--sizes", "8", "--phi", "1", "--methods", "native", *QUICK, "--json", "r.json"]) == 0
    assert main(["plot", "r.json"]) == 0
    out = capsys.readouterr().out
    assert "speed: nothing to draw" in out and "stages: nothing to draw" in out


def test_figures_without_matplotlib(measured, monkeypatch, capsys):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert main(["plot", str(measured)]) == 1
    assert "jax-ozaki[bench]" in capsys.readouterr().err


# Timing.


def test_every_variant_takes_every_turn():
    calls = []
    variants = [Variant(lambda i=i: calls.append(i), wait=lambda x: x, products=i + 1) for i in range(3)]
    take_turns(variants, seconds=1e-6, rounds=4)
    assert all(len(variant.ms) == 4 and min(variant.ms) > 0 for variant in variants)
    assert set(calls) == {0, 1, 2}


# cuBLAS, with a library that counts arguments as cuBLAS does.


class FakeCublas:
    """Column-major products of host memory; the statuses and settings of a handle."""

    def __init__(self, status=0, retained=55):
        self.settings, self.status, self.retained = {}, status, retained

    def cublasGetProperty(self, which, value):
        value._obj.value = (13, 1, 0)[which.value]

    def __getattr__(self, name):
        if not name.startswith("cublas"):
            raise AttributeError(name)

        def remember(*arguments):
            self.settings[name] = arguments[1:]
            return 0

        return remember

    def gemm(self, m, n, k, alpha, a, b, beta, c, tail):
        assert (alpha._obj.value, beta._obj.value) == (1, 0)
        assert [x.value for x in tail] == [79, -1]
        (pointer,) = self.settings["cublasSetFixedPointEmulationMantissaBitCountPointer"]
        ctypes.c_int.from_address(pointer.value).value = self.retained
        read = [
            np.ctypeslib.as_array((ctypes.c_double * (x * y)).from_address(p))
            for p, x, y in ((a, m, k), (b, k, n), (c, m, n))
        ]
        left, right, out = (x.reshape(s[::-1]).T for x, s in zip(read, ((m, k), (k, n), (m, n)), strict=True))
        out[...] = left @ right
        return self.status

    def cublasGemmEx(self, handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, *tail):
        m, n, k = m.value, n.value, k.value
        assert (ta.value, tb.value, at.value, bt.value, ct.value) == (0, 0, 1, 1, 1)
        assert (lda.value, ldb.value, ldc.value) == (m, k, m)
        return self.gemm(m, n, k, alpha, a.value, b.value, beta, c.value, tail)

    def cublasGemmStridedBatchedEx(
        self, handle, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, count, *tail
    ):
        for i in range(count.value):
            at_i = [x.value + 8 * i * stride.value for x, stride in ((a, sa), (b, sb), (c, sc))]
            self.gemm(m.value, n.value, k.value, alpha, *at_i[:2], beta, at_i[2], tail)
        return self.status


@pytest.fixture
def fake_cublas(monkeypatch):
    fake = FakeCublas()
    monkeypatch.setattr(cublas, "_library", lambda: fake)
    monkeypatch.setattr(driver, "call", lambda name, *arguments: None)
    monkeypatch.setattr(cublas, "_workspace_bytes", lambda shape, bits: 1024)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    return fake


@pytest.mark.parametrize("shape", [Shape(3, 5, 7), Shape(3, 5, 7, batch=2)], ids=str)
@pytest.mark.parametrize("name", ["cublas-fixed(55)", "cublas-dynamic"])
def test_cublas_multiplies_row_major_arrays(name, shape, fake_cublas):
    (method,), left_out = methods.make(methods.parse([name]), shape)
    assert not left_out
    a, b = operands(shape, 1.0)
    of = reference.Reference(a, b)
    assert of.errors(method.product(a, b), method.promise.bound(of.magnitudes))["share"] <= 1
    assert method.found(a, b) == {"retained_bits": 55, "slices": 7, "native_outputs": 0}
    settings = {name: [getattr(x, "value", x) for x in of] for name, of in fake_cublas.settings.items()}
    assert settings["cublasSetEmulationStrategy"] == [2]
    assert settings["cublasSetFixedPointEmulationMantissaControl"] == [1 if "fixed" in name else 0]
    assert settings["cublasSetFixedPointEmulationMaxMantissaBitCount"] == [55 if "fixed" in name else 79]
    assert settings["cublasSetWorkspace_v2"][1] == 1024
    assert list(fake_cublas.settings).index("cublasSetStream_v2") < list(fake_cublas.settings).index(
        "cublasSetWorkspace_v2"
    )


def test_cublas_that_declines_is_a_native_product(fake_cublas):
    fake_cublas.retained = -1
    (method,), _ = methods.make(methods.parse(["cublas-dynamic"]), Shape(3, 5, 7))
    method.product(*(operands := jax.block_until_ready((jnp.ones((3, 7)), jnp.ones((7, 5))))))
    assert method.found(*operands) == {"retained_bits": None, "slices": None, "native_outputs": 15}


def test_cublas_too_old_or_failing(fake_cublas, monkeypatch):
    fake_cublas.status = 15
    (method,), _ = methods.make(methods.parse(["cublas-fixed(40)"]), Shape(3, 5, 7))
    with pytest.raises(Unavailable, match=r"cublasGemmEx of cuBLAS 13\.1\.0 failed with status 15"):
        method.product(jnp.ones((3, 7)), jnp.ones((7, 5)))

    class Old:
        cublasGetProperty = fake_cublas.cublasGetProperty

    monkeypatch.setattr(cublas, "_library", Old)
    _, (left_out,) = methods.make(methods.parse(["cublas-fixed(40)"]), Shape(3, 5, 7))
    assert left_out.method == "cublas-fixed(40)" and "no float64 emulation: 13.1 or newer" in left_out.cause


# Profiles.

METRICS = {
    "gpu__time_duration.sum": ("ns", "1,240,500"),
    "launch__registers_per_thread": ("register/thread", "168"),
    "launch__shared_mem_per_block_static": ("byte/block", "1,024"),
    "launch__shared_mem_per_block_dynamic": ("Kbyte/block", "196.5"),
    "launch__shared_mem_per_block_driver": ("byte/block", "1,024"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "18.75"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "18.70"),
    "smsp__warps_eligible.avg.per_cycle_active": ("warp", "0.21"),
    "sm__inst_issued.avg.pct_of_peak_sustained_active": ("%", "23.1"),
    "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active": ("%", "12.0"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "91.4"),
    "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active": ("%", "0"),
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active": ("%", "20.5"),
    "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active": ("%", "3.25"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "11.5"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "40.0"),
    "lts__t_sector_hit_rate.pct": ("%", "85.25"),
    "smsp__pcsamp_sample_buffer_full": ("", "n/a"),
}
EXPECTED = {
    "duration_us": 1240.5, "registers": 168, "shared_bytes": 1024 + 196500, "occupancy_theoretical": 18.75,
    "occupancy_achieved": 18.7, "eligible_warps": 0.21, "issue": 23.1, "tensor": 91.4, "fp64": 0, "alu": 20.5,
    "lsu": 3.25, "dram": 11.5, "l2": 40, "l2_hit": 85.25,
}  # fmt: skip
WGMMA = "void ozaki::<unnamed>::wgmma_kernel<ozaki::Tile<256, 128>, (bool)1>(ozaki::TensorMaps, unsigned int)"
COMBINE = "void ozaki::combine_kernel<(int)14>(const unsigned char *, double *)"


def quoted(*cells):
    return ",".join(f'"{cell}"' for cell in cells)


def raw_page(kernels, metrics=METRICS):
    """What ncu writes for --csv --page raw: a line of names, a line of units, a line a launch."""
    first = [
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
    ]
    lines = ["==PROF== Connected to process 1234", quoted(*first, *metrics)]
    lines.append(quoted(*[""] * len(first), *(unit for unit, _ in metrics.values())))
    for i, kernel in enumerate(kernels):
        about = [i, 1234, "python", "host", kernel, 1, 7, "(384, 1, 1)", "(132, 1, 1)"]
        lines.append(quoted(*about, *(value for _, value in metrics.values())))
    return "\n".join(lines) + "\n==PROF== Disconnected\n"


def details_page(kernels):
    """What ncu writes for --csv with --metrics: a line a metric."""
    first = ["ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    lines = [quoted(*first)]
    for i, kernel in enumerate(kernels):
        lines += [quoted(i, kernel, "Command line profiler metrics", name, *x) for name, x in METRICS.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", [raw_page, details_page])
def test_csv_of_ncu(page):
    launches = ncu.launches(page([WGMMA, COMBINE]))
    assert [ncu.short_name(launch.kernel) for launch in launches] == ["wgmma_kernel", "combine_kernel"]
    for launch in launches:
        assert ncu.values(launch) == pytest.approx(EXPECTED)


def test_launches_belong_to_the_stage_of_their_marker():
    kernels = ["warmup", "wrapped_cosine", "a", "b", "wrapped_cosine", "c"]
    launches = [ncu.Launch(kernel, {}) for kernel in kernels]
    assert [(stage, x.kernel) for stage, x in ncu.by_stage(launches, ["s", "t"])] == [
        ("s", "a"),
        ("s", "b"),
        ("t", "c"),
    ]
    with pytest.raises(ncu.ProfilerError, match="2 markers were launched for 3 stages"):
        list(ncu.by_stage(launches, ["s", "t", "u"]))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "bound by the tensor cores, at 91% of the peak"),
        ({"tensor": 0.0, "dram": 88.2}, "bound by DRAM bandwidth, at 88%"),
        ({"tensor": 0.0, "issue": 71.0}, "mostly bound by instruction issue, at 71%"),
        (
            {"tensor": 30.0},
            "bound by latency: 0.21 eligible warps a scheduler, 19% occupancy, the busiest is L2 bandwidth at 40%",
        ),
        ({"tensor": None, "l2": None, "occupancy_achieved": None}, "the busiest is instruction issue at 23%"),
        (dict.fromkeys(ncu.LIMITS), "no utilisation"),
    ],
)
def test_what_bounds_a_kernel(changed, words):
    assert words in ncu.sentence(EXPECTED | changed)


@pytest.fixture
def fake_ncu(directory):
    """A program in ncu's place: writes a CSV to its --log-file, and what the workload would print."""

    def install(csv, stages, *, stderr="", status=0):
        (directory / "canned.csv").write_text(csv)
        script = directory / "ncu"
        script.write_text(
            f"#!{sys.executable}\nimport shutil, sys\n"
            "log = sys.argv[sys.argv.index('--log-file') + 1]\n"
            f"shutil.copy({str(directory / 'canned.csv')!r}, log)\n"
            "open('arguments', 'w').write(' '.join(sys.argv))\n"
            f"print({stages!r})\nprint({stderr!r}, file=sys.stderr)\nsys.exit({status})\n"
        )
        script.chmod(0o755)
        return str(script)

    return install


def test_profile(fake_ncu, directory, capsys):
    kernels = ["wrapped_cosine", "void ozaki::quantize_kernel<true>(int)", "wrapped_cosine", WGMMA]
    program = fake_ncu(raw_page(kernels), "stage grouped quantize_lhs\nstage grouped grouped_mma")
    assert main(["profile", "--size", "512", "--moduli", "9", "--ncu", program, "--json", "profile.json"]) == 0
    out = capsys.readouterr().out
    assert "grouped quantize_lhs      quantize_kernel" in out
    assert "grouped grouped_mma       wgmma_kernel" in out
    assert out.count("bound by the tensor cores, at 91% of the peak") == 2
    kernels = json.loads(Path("profile.json").read_text())["kernels"]
    assert [kernel["stage"] for kernel in kernels] == ["grouped quantize_lhs", "grouped grouped_mma"]
    assert kernels[1]["registers"] == 168 and kernels[1]["kernel"] == WGMMA
    arguments = (directory / "arguments").read_text()
    assert "--clock-control none" in arguments
    assert arguments.endswith("-m jax_ozaki._bench.workload 512 9 grouped partial-crt")


@pytest.mark.parametrize(
    ("csv", "stderr", "status", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "", 1, "administrators"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", "", 9, "LibraryNotLoaded"),
        ("", "profiling needs an NVIDIA GPU", 1, "status 1: profiling needs an NVIDIA GPU"),
        ("==PROF== Connected\n", "", 0, "profiled no kernel"),
        (raw_page(["wrapped_cosine", WGMMA]), "", 0, "1 markers were launched for 0 stages"),
    ],
)
def test_profile_that_cannot_be(csv, stderr, status, words, fake_ncu, capsys):
    assert main(["profile", "--ncu", fake_ncu(csv, "", stderr=stderr, status=status)]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_profile_without_ncu(monkeypatch, capsys):
    monkeypatch.setenv("PATH", os.getcwd())
    assert main(["profile"]) == 1
    assert "Nsight Compute is needed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "plot", "profile"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"usage: python -m jax_ozaki {command}" in capsys.readouterr().out
