"""Kernels under NVIDIA Nsight Compute: running it, reading its CSV, and saying what bounds a kernel.

The profiled program (``_bench/workload.py``) launches a marker kernel before every stage, so that each launch belongs
to a known stage whatever the kernels are called.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "cosine"
"""Part of the name that XLA gives the marker, a kernel that computes nothing but cosines."""

SECTIONS = (
    *("SpeedOfLight", "LaunchStats", "Occupancy", "SchedulerStats"),
    *("ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis"),
)

_SHARE = r"\.avg\.pct_of_peak_sustained_(active|elapsed)"
PIPES = r"sm__(inst_executed_)?pipe_(tensor\w*|fp64\w*|alu|lsu)(_cycles_active)?\.avg\.pct_of_peak_sustained_active"
"""Names of utilisation differ by architecture: all that match are read."""


@dataclass(frozen=True)
class Column:
    """A quantity of a kernel: from the metrics of ncu whose whole name matches, the largest or their sum."""

    title: str
    unit: str
    metrics: str
    add: bool = False


COLUMNS = {
    "duration_us": Column("time", "us", r"gpu__time_duration\.\w+"),
    "registers": Column("regs", "a thread", r"launch__registers_per_thread"),
    "shared_bytes": Column("shared", "B a block", r"launch__shared_mem_per_block_(static|dynamic)", add=True),
    "occupancy_theoretical": Column("occ. max", "%", r"sm__maximum_warps_per_active_cycle_pct"),
    "occupancy_achieved": Column("occ.", "%", rf"sm__warps_active{_SHARE}"),
    "eligible_warps": Column("eligible", "warps", r"smsp__warps_eligible\.avg\.per_cycle_active"),
    "issue": Column("issue", "%", rf"(sm__inst_issued|smsp__issue_active|sm__issue_active){_SHARE}"),
    "tensor": Column("tensor", "%", rf"sm__(inst_executed_)?pipe_tensor\w*{_SHARE}"),
    "fp64": Column("fp64", "%", rf"sm__(inst_executed_)?pipe_fp64\w*{_SHARE}"),
    "alu": Column("alu", "%", rf"sm__(inst_executed_)?pipe_alu(_cycles_active)?{_SHARE}"),
    "lsu": Column("lsu", "%", rf"sm__(inst_executed_)?pipe_lsu(_cycles_active)?{_SHARE}"),
    "dram": Column("dram", "%", rf"(gpu__dram_throughput|dram__throughput){_SHARE}"),
    "l2": Column("l2", "%", rf"lts__throughput{_SHARE}"),
    "l2_hit": Column("l2 hit", "%", r"lts__t_sector_hit_rate\.pct"),
}

LIMITS = {
    "tensor": "the tensor cores",
    "fp64": "the FP64 pipe",
    "alu": "the integer ALU",
    "lsu": "the load and store unit",
    "issue": "instruction issue",
    "dram": "DRAM bandwidth",
    "l2": "L2 bandwidth",
}

_FACTORS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}
_FACTORS |= {"Kbyte/block": 1e3, "Mbyte/block": 1e6, "Kbyte": 1e3, "Mbyte": 1e6}

Values = dict[str, float | None]


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, and its metrics in microseconds, bytes and percent."""

    kernel: str
    metrics: dict[str, float]


class ProfilerError(Exception):
    """ncu is absent, may not read the counters, or found nothing; one sentence."""


def run(ncu: str, arguments: list[str]) -> tuple[list[Launch], list[str]]:
    """Profile the workload with these arguments: its launches, and the names of its stages in order."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "ncu.csv"
        sections = [word for section in SECTIONS for word in ("--section", section)]
        command = [
            *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
            # The clocks belong to the machine, and a fixed clock is not the one that products run at.
            *("--clock-control", "none", "--profile-from-start", "off", *sections, "--metrics", f"regex:^{PIPES}$"),
            *(sys.executable, "-P", "-m", "jax_ozaki._bench.workload", *arguments),
        ]
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        except OSError as error:
            raise ProfilerError(
                f"{ncu}: {error.strerror}: NVIDIA Nsight Compute is needed, on PATH or named with --ncu"
            ) from None
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    found = text + done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in found:
        raise ProfilerError(
            "the NVIDIA driver lets only administrators read performance counters here (ERR_NVGPUCTRPERM): run as one, or "
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    problems = [line for line in found.splitlines() if "==ERROR==" in line]
    if done.returncode or problems:
        last = (problems or found.strip().splitlines() or ["no output"])[-1]
        raise ProfilerError(f"ncu failed with status {done.returncode}: {last.removeprefix('==ERROR==').strip()}")
    stages = [line.removeprefix("stage ") for line in done.stdout.splitlines() if line.startswith("stage ")]
    return launches(text), stages


def launches(text: str) -> list[Launch]:
    """The launches in a CSV of ncu, one line each (``--page raw``) or one line a metric.

    Raises ProfilerError where there are none.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    rows = [] if start is None else list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    if not rows:
        raise ProfilerError("ncu profiled no kernel")
    if "Metric Name" in rows[0]:
        by_launch: dict[str, Launch] = {}
        for row in rows:
            launch = by_launch.setdefault(row["ID"], Launch(row["Kernel Name"], {}))
            launch.metrics.update(_metric(row["Metric Name"], row["Metric Value"], row["Metric Unit"]))
        return list(by_launch.values())
    units, *rows = rows
    return [
        Launch(row["Kernel Name"], {k: v for name in row for k, v in _metric(name, row[name], units[name]).items()})
        for row in rows
    ]


def _metric(name: str | None, value: str | None, unit: str | None) -> dict[str, float]:
    """The metric in its base unit; none where its value is no number."""
    try:
        number = float((value or "").replace(",", ""))
    except ValueError:
        return {}
    return {name: number * _FACTORS.get(unit or "", 1.0)} if name else {}


def by_stage(found: list[Launch], stages: list[str]) -> Iterator[tuple[str, Launch]]:
    """(stage, launch) of every launch that is no marker. Raises ProfilerError where markers and stages do not match."""
    at = -1
    for launch in found:
        if MARKER in launch.kernel:
            at += 1
        elif 0 <= at < len(stages):
            yield stages[at], launch
    if at != len(stages) - 1:
        raise ProfilerError(f"{at + 1} markers were launched for {len(stages)} stages")


def values(launch: Launch) -> Values:
    """The columns of a launch; None where ncu has no such metric on this GPU."""

    def value(column: Column) -> float | None:
        matching = [x for name, x in launch.metrics.items() if re.fullmatch(column.metrics, name)]
        if not matching:
            return None
        return sum(matching) if column.add else max(matching)

    return {name: value(column) for name, column in COLUMNS.items()}


def sentence(of: Values) -> str:
    """What bounds the kernel."""
    shares = {name: share for name in LIMITS if (share := of[name]) is not None}
    if not shares:
        return "ncu reported no utilisation"
    top = max(shares, key=shares.__getitem__)
    if shares[top] >= 80:
        return f"bound by {LIMITS[top]}, at {shares[top]:.0f}% of the peak"
    if shares[top] >= 60:
        return f"mostly bound by {LIMITS[top]}, at {shares[top]:.0f}% of the peak"
    eligible, occupancy = of["eligible_warps"], of["occupancy_achieved"]
    why = [f"{eligible:.2f} eligible warps a scheduler"] if eligible is not None else []
    why += [f"{occupancy:.0f}% occupancy"] if occupancy is not None else []
    return f"bound by latency: {', '.join([*why, f'the busiest is {LIMITS[top]} at {shares[top]:.0f}%'])}"


def short_name(kernel: str) -> str:
    """The kernel's own name, without types, namespaces and parameters."""
    name = kernel.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    name = re.split(r"[<(]", name, maxsplit=1)[0]
    return name.split()[-1].rsplit("::", 1)[-1] if name.strip() else kernel
