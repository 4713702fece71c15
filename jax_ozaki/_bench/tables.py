"""Results as tables, for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import ncu
from .methods import LeftOut
from .operands import Shape
from .results import Row


@dataclass(frozen=True)
class Table:
    """Cells as text. The first ``words`` columns, and the last one of a table with ``remark``, are words."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: int
    remark: bool = False

    def _is_words(self, column: int) -> bool:
        return column < self.words or (self.remark and column == len(self.header) - 1)

    def text(self) -> list[str]:
        lines = [self.header, *self.rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]

        def line(cells: tuple[str, ...]) -> str:
            aligned = [
                f"{cell:{'<' if self._is_words(i) else '>'}{width}}"
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return ("  " + "  ".join(aligned)).rstrip()

        return [self.title, *map(line, lines)]

    def markdown(self) -> list[str]:
        rule = tuple("---" if self._is_words(i) else "---:" for i in range(len(self.header)))
        escaped = [tuple(cell.replace("|", r"\|") for cell in cells) for cells in (self.header, *self.rows)]
        lines = [f"| {' | '.join(cells)} |" for cells in (escaped[0], rule, *escaped[1:])]
        return [f"**{self.title}**", "", *lines]


_COLUMNS = {
    "method": lambda row: row["method"],
    "contract": lambda row: row["contract"],
    "bits": lambda row: _number(row["retained_bits"] or row["bits"], "d"),
    "N": lambda row: _number(row["moduli"], "d"),
    "ms": lambda row: _number(row["ms"], ".4f"),
    "spread": lambda row: _number(row["spread"], ".1%"),
    "TFLOPS": lambda row: _number(row["tflops"], ".3g"),
    "native/t": lambda row: _number(row["ratio"], ".3f"),
    "floor/t": lambda row: _number(row["int8_floor_share"], ".2f"),
    "MiB": lambda row: _number(row["workspace_bytes"] and row["workspace_bytes"] / 2**20, ".0f"),
}


def head(meta: dict[str, Any]) -> list[str]:
    """What the results belong to, and what the columns mean."""
    cublas = f", cuBLAS {meta['cublas']}" if meta["cublas"] else ""
    return [
        f"{meta['device']}, jax {meta['jax']}{cublas}, jax_ozaki {meta['jax_ozaki']}, ffi hash {meta['ffi_hash']}",
        "phi=...: max |C - AB| / (|A||B|) in units of 2^-53; bound: the largest share of what its contract allows "
        "that an output takes; floor: the INT8 products alone",
    ]


def of_rows(rows: Sequence[Row]) -> list[Table]:
    """The columns that matter most: a table a shape, a line a method and its times, an error for every phi."""
    phis = list(dict.fromkeys(row["phi"] for row in rows))
    shapes: dict[Shape, dict[tuple[Any, ...], list[Row]]] = {}
    for row in rows:
        shape = Shape(row["m"], row["n"], row["k"], row["batch"])
        line = (row["method"], row["contract"], row["timed_phi"])
        shapes.setdefault(shape, {}).setdefault(line, []).append(row)
    header = (*_COLUMNS, *(f"phi={phi:g}" for phi in phis), "bound")
    tables = []
    for shape, lines in shapes.items():
        title = f"n = {shape}" if shape.m == shape.n == shape.k else f"(m, n, k) = {shape}"
        cells = []
        for of_line in lines.values():
            errors = {row["phi"]: row["max_error_u"] for row in of_line}
            worst = f"{max(row['share'] for row in of_line):.2g}"
            broken = "" if all(row["within_contract"] for row in of_line) else " BROKEN"
            by_phi = (_number(errors.get(phi), ".3g") for phi in phis)
            cells.append((*(cell(of_line[0]) for cell in _COLUMNS.values()), *by_phi, worst + broken))
        tables.append(Table(title, header, cells, words=2))
    return tables


def left_out(items: Sequence[LeftOut], shapes: set[str]) -> list[str]:
    """One line a cause, with the shapes only where not all have it."""
    where: dict[tuple[str, str], list[str]] = {}
    for x in items:
        where.setdefault((x.method, x.cause), []).append(x.shape or "")
    return [
        f"{method}: {cause}" + ("" if set(at) == shapes else f" (at {', '.join(at)})")
        for (method, cause), at in where.items()
    ]


def of_kernels(meta: dict[str, Any], kernels: Sequence[Row]) -> Table:
    """A line a kernel and what bounds it."""
    columns = ncu.COLUMNS.items()
    header = ("stage", "kernel", *(f"{column.title} ({column.unit})" for _, column in columns), "bound by")
    rows = []
    for kernel in kernels:
        cells = (kernel[name] for name in ncu.COLUMNS)
        numbers = ("-" if x is None else f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in cells)
        rows.append((kernel["stage"], ncu.short_name(kernel["kernel"])[:28], *numbers, kernel["sentence"]))
    title = f"n = {meta['n']}, {meta['moduli']} moduli, ffi hash {meta['ffi_hash']}"
    return Table(title, header, rows, words=2, remark=True)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
