"""The file of measurements: {"meta": {"ffi_hash", "gpu", ...}, "rows": [{"method", "contract", ...}]}.

One file holds one version of the kernels, named by its ``ffi_hash``.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import jax

from jax_ozaki import _ffi
from jax_ozaki._bench.timing import query_gpu

KEY = ("method", "contract", "dtype", "m", "n", "k", "batch")
"""What identifies a row."""

Row = dict[str, Any]


def machine() -> dict[str, Any]:
    """What measurements belong to, for a file's "meta"."""
    driver, power = query_gpu("driver_version", "power.limit")
    return {
        "ffi_hash": _ffi.build_info()["ffi_hash"],
        "gpu": jax.devices()[0].device_kind,
        "driver": driver,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "power_limit_w": float(power) if power != "unknown" else None,
    }


def existing_rows(path: Path, ffi_hash: str) -> list[Row]:
    """The rows of a file of the same kernels; none where there is no file. SystemExit for other kernels."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if found["meta"]["ffi_hash"] != ffi_hash:
        raise SystemExit(f"{path} holds results of ffi_hash {found['meta']['ffi_hash']}; these are of {ffi_hash}.")
    return found["rows"]


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """All rows, a new one in place of an old one with the same key, in the order of the keys."""
    rows = {tuple(row[name] for name in KEY): row for row in [*old, *new]}
    return sorted(rows.values(), key=lambda row: (row["batch"], row["n"], row["m"], row["k"], row["method"]))


def save(path: Path, meta: dict[str, Any], rows: list[Row]) -> None:
    """Write the file in one step: a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    unfinished = path.with_suffix(".new")
    unfinished.write_text(f'{{"meta": {json.dumps(meta, indent=1)},\n "rows": [\n  {lines}\n]}}\n')
    os.replace(unfinished, path)
