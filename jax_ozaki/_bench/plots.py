"""Figures of a file of results. Only rows of equal contract share a line of comparison or a panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from .results import Results, Row

Figure = Any

MARKERS = "os^vD<>pPX*h"
CLIPPED = 3
"""Bars of so many times the lowest one are cut off: the number on them is their height."""
NATIVE = {"color": "0.55", "ls": "--", "lw": 1.2, "zorder": 1}


def speed(results: Results) -> Figure | None:
    """Time and TFLOPS against n, a panel a contract; the native product, of another contract, in grey."""
    rows = [row for row in results["rows"] if row["ms"] is not None and row["phi"] == row["timed_phi"]]
    rows = _first_phi(rows)
    contracts = _unique(row["contract"] for row in rows if row["method"] != "native")
    if not contracts:
        return None
    look = _looks(_unique(row["method"] for row in rows))
    columns = min(4, len(contracts))
    lines = math.ceil(len(contracts) / columns)
    figure = _figure(3.2 * columns + 0.8, 5.6 * lines)
    axes = figure.subplots(2 * lines, columns, sharex=True, squeeze=False)
    pairs = [pair for i in range(0, 2 * lines, 2) for pair in zip(axes[i], axes[i + 1], strict=True)]
    native = [row for row in rows if row["method"] == "native"]
    fastest = max(row["tflops"] for row in rows)
    for (above, below), contract in zip(pairs, contracts, strict=False):
        above.set_title(contract)
        for axis, column in ((above, "ms"), (below, "tflops")):
            axis.plot(*_against_size(native, column), **NATIVE, label="native (its own contract)")
            for method in look:
                of_method = [row for row in rows if row["contract"] == contract and row["method"] == method]
                if of_method and method != "native":
                    axis.plot(*_against_size(of_method, column), **look[method], label=method)
            axis.set_xscale("log", base=2)
            axis.grid(alpha=0.3)
        above.set_yscale("log")
        below.legend(frameon=False, fontsize=7, loc="upper left")
        above.set_ylabel("time of a product / ms")
        below.set_ylabel("TFLOPS = 2 m n k / time")
        below.set_ylim(0, 1.05 * fastest)
        below.set_xlabel("n" if all(map(_is_square, rows)) else r"$(mnk)^{1/3}$")
        below.tick_params(labelbottom=True)
    for pair in pairs[len(contracts) :]:
        for axis in pair:
            axis.set_axis_off()
    return _titled(figure, results)


def accuracy(results: Results) -> Figure | None:
    """Error against time at the largest shape, a panel a phi; a line joins the methods of one contract."""
    rows = _largest([row for row in results["rows"] if row["ms"] is not None])
    if not rows:
        return None
    phis = sorted(_unique(row["phi"] for row in rows))
    contracts = _unique(row["contract"] for row in rows)
    methods = _looks(_unique(row["method"] for row in rows))
    figure = _figure(3.2 * len(phis) + 2.4, 3.9)
    axes = figure.subplots(1, len(phis), sharey=True, sharex=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axis, phi in zip(axes, phis, strict=True):
        for i, contract in enumerate(contracts):
            of_contract = [row for row in rows if row["contract"] == contract and row["phi"] == phi]
            of_contract.sort(key=lambda row: row["ms"])
            # An error of 0 has no logarithm: it is drawn at the smallest error of a rounding.
            points = [(row["ms"], max(row["max_error_u"], 2.0**-53)) for row in of_contract]
            axis.plot([x for x, _ in points], [y for _, y in points], color=f"C{i % 10}", lw=1, zorder=1)
            for row, (x, y) in zip(of_contract, points, strict=True):
                marker = methods[row["method"]]["marker"]
                label = f"{row['method']}, {contract}" if row["method"] != contract else contract
                handles[label] = axis.scatter(x, y, marker=marker, color=f"C{i % 10}", s=28, zorder=2)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(rf"$\varphi$ = {phi:g}")
        axis.set_xlabel("time of a product / ms")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(r"max $|C - AB|\;/\;(2^{-53}\,|A||B|)$")
    figure.legend(list(handles.values()), list(handles), loc="outside right upper", frameon=False, fontsize=7)
    return _titled(figure, results, rows[0])


def stages(results: Results) -> Figure | None:
    """Where the time goes: the stages of the pipelines, each timed alone, a panel a contract and shape."""
    rows = _first_phi([row for row in results["rows"] if row["stages_ms"]])
    if not rows:
        return None
    panels = _unique((row["contract"], _size(row)) for row in rows)
    names = _unique(name for row in rows for name in row["stages_ms"])
    columns = min(5, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = _figure(2.5 * columns + 1.6, 3.2 * lines + 0.6)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axis, (contract, size) in zip(axes, panels, strict=False):
        of_panel = [row for row in rows if (row["contract"], _size(row)) == (contract, size)]
        whole = [sum(row["stages_ms"].values()) for row in of_panel]
        top = 1.15 * max(height for height in whole if height <= CLIPPED * min(whole))
        for x, row in enumerate(of_panel):
            bottom = 0.0
            for name, height in row["stages_ms"].items():
                color = f"C{names.index(name) % 10}"
                hatch = "//" if names.index(name) >= 10 else None
                handles[name] = axis.bar(x, height, bottom=bottom, width=0.6, color=color, hatch=hatch)
                bottom += height
            handles["the whole product"] = axis.hlines(row["ms"], x - 0.4, x + 0.4, color="k", lw=1.5)
            if bottom > top:
                axis.text(x, top, f"{bottom:.3g} ", ha="center", va="top", fontsize=7, rotation=90, color="w")
        axis.set_ylim(0, top)
        axis.set_xticks(range(len(of_panel)), [row["method"] for row in of_panel], fontsize=7, rotation=45, ha="right")
        axis.set_title(f"{contract}, n = {size:g}", fontsize=9)
        axis.set_ylabel("ms", fontsize=8)
        axis.grid(alpha=0.3, axis="y")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.legend(list(handles.values()), list(handles), loc="outside right upper", frameon=False, fontsize=8)
    return _titled(figure, results)


FIGURES: dict[str, Callable[[Results], Figure | None]] = {"speed": speed, "accuracy": accuracy, "stages": stages}
"""None stands for results that hold nothing to draw."""


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # an extra, and slow to import

    return Figure(figsize=(width, height), layout="constrained")


def _titled(figure: Figure, results: Results, row: Row | None = None) -> Figure:
    meta = results["meta"]
    shape = f", n = {_size(row):g}" if row else ""
    text = f"{meta['device']}{shape}, jax {meta['jax']}, ffi hash {meta['ffi_hash']}, {meta['date'][:10]}"
    figure.suptitle(text, fontsize=8)
    return figure


def _looks(methods: list[str]) -> dict[str, dict[str, Any]]:
    return {
        method: {"color": f"C{i % 10}", "marker": MARKERS[i % len(MARKERS)], "ms": 5, "lw": 1.2}
        for i, method in enumerate(methods)
    }


def _size(row: Row) -> float:
    return row["n"] if _is_square(row) else round((row["m"] * row["n"] * row["k"]) ** (1 / 3))


def _is_square(row: Row) -> bool:
    return row["m"] == row["n"] == row["k"]


def _against_size(rows: list[Row], column: str) -> tuple[list[float], list[float]]:
    points = sorted((_size(row), row[column]) for row in rows)
    return [x for x, _ in points], [y for _, y in points]


def _first_phi(rows: list[Row]) -> list[Row]:
    """Of the rows that differ in phi alone, the first."""
    first: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        first.setdefault(tuple(row[name] for name in ("method", "contract", "m", "n", "k", "batch")), row)
    return list(first.values())


def _largest(rows: list[Row]) -> list[Row]:
    largest = max((_size(row) for row in rows), default=0)
    return [row for row in rows if _size(row) == largest]


def _unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
