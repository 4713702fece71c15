"""The benchmark and the profiler on a GPU: every method of the registry, and kernels under ncu."""

import json
import shutil

import pytest

from jax_ozaki.__main__ import main
from jax_ozaki._bench import methods, results

ABLATIONS = {"grouped-sync", "partial-crt-sync", "full-fused", "local-prologue"}


@pytest.mark.parametrize("batch", [1, 2])
def test_every_method_is_measured_or_its_absence_has_a_cause(batch, tmp_path, capsys):
    path = tmp_path / "results.json"
    arguments = ["--sizes", "256", "--phi", "0.5", "2", "--seconds", "0.01", "--rounds", "2"]
    assert main(["bench", *arguments, "--batch", str(batch), "--json", str(path)]) == 0
    found = results.read(path)
    measured = {row["method"] for row in found["rows"]}
    causes = {x["method"].partition("(")[0]: x["cause"] for x in found["left_out"]}
    assert measured | set(causes) >= set(methods.KINDS)
    assert measured >= set(methods.KINDS) - ABLATIONS - {"cublas-fixed", "cublas-dynamic"}
    for name in {"cublas-fixed", "cublas-dynamic"} - measured:
        assert "13.1 or newer" in causes[name]
    for name in ABLATIONS - measured:
        assert "JAX_OZAKI_ABLATION" in causes[name]
    same = {(row["contract"], row["phi"]): set() for row in found["rows"] if row["method"] == "partial-crt"}
    for row in found["rows"]:
        same.get((row["contract"], row["phi"]), set()).add(row["max_abs_error"])
    assert same and all(len(errors) == 1 for errors in same.values())
    with capsys.disabled():
        print("\n" + "\n".join(f"{name}: {cause}" for name, cause in causes.items()))


@pytest.mark.skipif(shutil.which("ncu") is None, reason="needs NVIDIA Nsight Compute")
def test_kernels_are_profiled(tmp_path, capsys):
    path = tmp_path / "profile.json"
    if main(["profile", "--size", "512", "--json", str(path)]):
        error = capsys.readouterr().err
        if "counters" in error or "initialize the profiler" in error:
            pytest.skip(error)
        pytest.fail(error)
    kernels = json.loads(path.read_text())["kernels"]
    stages = [f"grouped {stage}" for stage in ("quantize_lhs", "quantize_rhs", "grouped_mma", "combine")]
    stages += [f"partial-crt {stage}" for stage in ("grouped_mma", "combine")]
    assert list(dict.fromkeys(kernel["stage"] for kernel in kernels)) == stages
    for kernel in kernels:
        assert kernel["duration_us"] > 0 and kernel["registers"] > 0
        assert 0 < kernel["occupancy_achieved"] <= 100
    with capsys.disabled():
        print("\n" + "\n".join(f"{kernel['stage']}: {kernel['sentence']}" for kernel in kernels))
