"""What the benchmark takes from NVIDIA: cuBLAS's emulation and the profiler ncu, with programs in their place."""

import ctypes
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_ozaki.__main__ import main
from jax_ozaki._bench import cublas, driver, methods, ncu, reference
from jax_ozaki._bench.operands import Shape, operands
from jax_ozaki._bench.unavailable import Unavailable

pytestmark = pytest.mark.usefixtures("directory")


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
    assert "  grouped quantize_lhs  quantize_kernel" in out
    assert "  grouped grouped_mma   wgmma_kernel" in out
    assert out.count("bound by the tensor cores, at 91% of the peak") == 2
    kernels = json.loads(Path("profile.json").read_text())["kernels"]
    assert [kernel["stage"] for kernel in kernels] == ["grouped quantize_lhs", "grouped grouped_mma"]
    assert kernels[1]["registers"] == 168 and kernels[1]["kernel"] == WGMMA
    assert main(["results", "profile.json"]) == 0
    assert capsys.readouterr().out == out
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


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["profile", "--help"])
    assert stopped.value.code == 0
    assert "usage: python -m jax_ozaki profile" in capsys.readouterr().out
