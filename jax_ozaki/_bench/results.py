"""The file of results: what its rows hold, and reading it back.

{"schema": "jax_ozaki.bench.v1", "meta": {...}, "rows": [{column: value, ...}, ...],
 "left_out": [{"method": ..., "cause": ..., "shape": ...}, ...]}
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .methods import LeftOut

SCHEMA = "jax_ozaki.bench.v1"
PROFILE_SCHEMA = "jax_ozaki.profile.v1"
"""{"schema": ..., "meta": {"n", "moduli", "ffi_hash"}, "kernels": [{"stage", "kernel", columns of ncu.py, "sentence"}, ...]}"""

Row = dict[str, Any]
Results = dict[str, Any]

COLUMNS = {
    "method": "how the product was computed",
    "contract": "its precision contract; rows of equal contract may be compared in speed",
    "guarantee": "the contract in one sentence, and the bound that the errors were checked against",
    "m": "rows of A",
    "n": "columns of B",
    "k": "length of the contraction",
    "batch": "products computed at once",
    "dtype": "of the operands",
    "phi": "exponent spread of the operands: (rand - 1/2) exp(phi randn)",
    "bits": "mantissa bits kept of an element relative to the largest in its row or column; null where not stated",
    "retained_bits": "mantissa bits that cuBLAS says it retained",
    "moduli": "moduli multiplied; 0 for a native product",
    "slices": "8-bit slices, for schemes that cut operands into slices",
    "pair_schedule": "which pairs of slices are multiplied",
    "residual": "whether a product of the rounding residuals is added",
    "native_outputs": "outputs computed by the native float64 product",
    "max_abs_error": "max |C - AB|",
    "max_rel_error": "max |C - AB| / |AB|",
    "rms_error": "root of the mean of (C - AB)^2",
    "max_error_u": "max |C - AB| / (|A||B|), in units of 2^-53",
    "max_norm_error_u": "max |C - AB| / (norm2(row) norm2(column)), in units of 2^-53",
    "share": "the largest share of its allowed error that an output takes",
    "within_contract": "whether every output compared is within its allowed error",
    "ms": "time of a product in milliseconds: the median of the turns, which lie as far apart as the run is long",
    "ms_min": "the shortest turn",
    "ms_max": "the longest turn",
    "turns": "how many turns",
    "spread": "width of the interval of the true median, relative to ms: what two runs may differ by; null of one turn",
    "timed_phi": "phi of the operands that were timed",
    "tflops": "2 m n k batch / ms",
    "native_ms": "median time of the native product in the same rounds",
    "ratio": "native_ms / ms",
    "int8_floor_ms": "the INT8 products alone, at the rate of one large INT8 product of XLA in the same rounds",
    "int8_floor_share": "int8_floor_ms / ms",
    "workspace_bytes": "temporary memory of the compiled program; for cuBLAS, the workspace it was given",
    "stages_ms": "median time of every stage alone",
    "power_w": "median power of the GPU during the rounds",
    "sm_mhz": "median SM clock during the rounds",
    "sm_mhz_min": "the lowest",
    "sm_mhz_max": "the highest",
}
"""Every row has every column, null where it does not apply."""


def encode(meta: dict[str, Any], rows: list[Row], left_out: list[LeftOut]) -> bytes:
    """The file, one line a row, numbers to nine digits."""

    def lines(items: list[Any]) -> str:
        return ",\n  ".join(json.dumps(_rounded(item)) for item in items)

    head = f'{{"schema": {json.dumps(SCHEMA)},\n "meta": {json.dumps(meta, indent=1)}'
    body = f' "rows": [\n  {lines(rows)}\n ],\n "left_out": [\n  {lines([asdict(x) for x in left_out])}\n ]}}\n'
    return f"{head},\n{body}".encode()


def _rounded(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _rounded(value) for key, value in x.items()}
    return float(f"{x:.9g}") if isinstance(x, float) else x


def encode_profile(meta: dict[str, Any], kernels: list[Row]) -> bytes:
    """The file of a profile."""
    return (json.dumps({"schema": PROFILE_SCHEMA, "meta": meta, "kernels": kernels}, indent=1) + "\n").encode()


def read(path: Path) -> Results:
    """The results in a file, or the profile. Raises ValueError for anything else, a row without a stated contract included."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a JSON file ({error})") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema == PROFILE_SCHEMA:
        return found
    if schema != SCHEMA:
        raise ValueError(f"not a file of results: its schema is neither {SCHEMA} nor {PROFILE_SCHEMA}")
    for i, row in enumerate(found["rows"]):
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise ValueError(f"row {i} has no {', '.join(missing)}")
        if not row["contract"] or not row["guarantee"]:
            raise ValueError(f"row {i} ({row['method']}) states no contract")
    return found
