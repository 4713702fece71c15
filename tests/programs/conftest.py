"""Whole programs with every product emulated, each against a known answer.

A program runs natively, rewritten by ``emulate`` under the default contract, and under ``enable`` with another one, as
the bits of a contract are other tests' concern and each compiles for itself. What stays native is read from the lowered
modules too, independently of ``explain``. After the tests, a table shows the counts, the errors and the times;
``--programs-json=FILE`` records it, for ``benchmarks/programs.py``.
"""

import json
import os
import re
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pytest

import jax_ozaki as jo
from compiled import emulated
from jax_ozaki._cli import info

ENABLED = jo.Contract.mantissa(53)
LAST_STAGES = re.compile(r"@jax_ozaki\.(?:combine|complex_combine|ladder_sum)\b")
"""One of them ends each emulated product."""
REPETITIONS = 3  # of a timed run, after the one that compiles
EMULATED_TYPES = {"f64"}
if emulated(jo.dot, *np.ones((2, 1), complex)):
    EMULATED_TYPES.add("complex<f64>")


@dataclass
class Row:
    """A program in the table: what was counted and measured, by the way in which it ran."""

    package: str
    program: str
    allowed: float
    products: dict[str, tuple[int, int]] = field(default_factory=dict)  # replaced, left native
    error: dict[str, float] = field(default_factory=dict)  # relative, in the 2-norm
    seconds: dict[str, float] = field(default_factory=dict)
    explained: list[str] = field(default_factory=list)  # under enable: one line a product, equal ones once

    HEADER = (
        f"{'':48}{'emulate':>16}{'enable':>16}{'error':>27}{'ms':>18}\n"
        f"{'program':48}{'replaced':>9}{'left':>7}{'replaced':>9}{'left':>7}"
        f"{'native':>9}{'emulated':>9}{'allowed':>9}{'native':>9}{'emulated':>9}"
    )

    def run(self, way, fn, args, known):
        results = jax.tree.leaves(jax.block_until_ready(fn(*args)))
        pairs = zip(results, jax.tree.leaves(known), strict=True)
        self.error[way] = np.max([relative_error(np.asarray(x), np.asarray(y)) for x, y in pairs])
        self.seconds[way] = min(duration(fn, args) for _ in range(REPETITIONS))
        assert self.error[way] <= self.allowed, f"{way}: {self.error[way]}"

    def count(self, way, modules, explanation):
        """What ``modules`` and the ``explanation``, where there is one, say of the products."""
        replaced = sum(len(LAST_STAGES.findall(text)) for text in modules)
        left = native_products(modules)
        assert modules and not EMULATED_TYPES.intersection(left), f"native, {way}: {left}"
        self.products[way] = replaced, len(left)
        if explanation is not None:
            self.products[way] = explanation.emulated, explanation.native
            assert [x > 0 for x in self.products[way]] == [replaced > 0, len(left) > 0], explanation

    def __str__(self):
        emulate, enable = (self.products.get(way, ("", "")) for way in ("emulate", "enable"))
        emulated = "emulate" if "emulate" in self.error else "enable"
        error, seconds = ([of_way["native"], of_way[emulated]] for of_way in (self.error, self.seconds))
        return (
            f"{self.package + ': ' + self.program:48}{emulate[0]:>9}{emulate[1]:>7}{enable[0]:>9}{enable[1]:>7}"
            f"{error[0]:9.0e}{error[1]:9.0e}{self.allowed:9.0e}{1e3 * seconds[0]:9.2f}{1e3 * seconds[1]:9.2f}"
        )


ROWS = pytest.StashKey[list[Row]]()


def lines(explanation):
    """Those of an explanation, equal ones once, with their number; files as their packages name them."""
    if explanation is None:
        return []
    *products, total = re.sub(r"\S*/(?:site-packages|tests)/", "", str(explanation)).splitlines()
    return [f"{line} ({count} such)" if count > 1 else line for line, count in Counter(products).items()] + [total]


def relative_error(x, known):
    assert x.shape == known.shape and x.dtype == known.dtype
    return np.linalg.norm(x - known) / np.linalg.norm(known)


def duration(fn, args):
    start = time.perf_counter()
    jax.block_until_ready(fn(*args))
    return time.perf_counter() - start


def native_products(modules):
    """The element types of the float64 and complex128 products in StableHLO."""
    product = r"stablehlo\.dot_general .*-> tensor<(?:\d+x)*(complex<f64>|f64)>"
    return [dtype for text in modules for dtype in re.findall(product, text)]


@contextmanager
def lowered_modules(directory):
    """A list that afterwards holds the StableHLO of everything that jax compiled."""
    modules = []
    jax.config.update("jax_dump_ir_to", str(directory))
    try:
        yield modules
    finally:
        jax.config.update("jax_dump_ir_to", "")
        modules += [path.read_text() for path in directory.glob("*.mlir")]


@pytest.fixture
def check(request, tmp_path):
    """Runs ``fn(*args)`` in every way and compares with ``known``, a pytree like its result.

    A program that is not ``traceable``, since it looks at values or keeps state, runs op by op; ``emulate`` cannot
    take it.
    """

    def check(fn, *args, known, tolerance, traceable=True):
        package, program = request.path.stem.removeprefix("test_"), request.node.name.removeprefix("test_")
        row = Row(package, program.replace("_", " "), tolerance)
        run = jax.jit if traceable else lambda fn: fn
        row.run("native", run(fn), args, known)
        if traceable:
            rewritten = jo.emulate(fn, min_size=0)
            with lowered_modules(tmp_path / "emulate") as modules:
                row.run("emulate", run(rewritten), args, known)
            row.count("emulate", modules, rewritten.explain(*args))
        with jo.enable(ENABLED, min_size=0) as block, lowered_modules(tmp_path / "enable") as modules:
            row.run("enable", run(fn), args, known)
        explanation = block.explain(fn, *args) if traceable else None
        row.count("enable", modules, explanation)
        row.explained = lines(explanation)
        request.config.stash.setdefault(ROWS, []).append(row)

    return check


def pytest_addoption(parser):
    parser.addoption("--programs-json", type=Path, metavar="FILE", help="where to record the table of programs")


def pytest_terminal_summary(terminalreporter, config):
    if not (rows := config.stash.get(ROWS, [])):
        return
    terminalreporter.section("whole programs, every product emulated (min_size=0)")
    terminalreporter.write_line("\n".join([Row.HEADER, *map(str, rows)]))
    if path := config.getoption("programs_json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record(rows), indent=1) + "\n")


def record(rows):
    """The table as JSON: {"meta": date, versions, machine, contracts; "rows": [...]}."""
    installed = info.collect()
    packages = {row.package: DISTRIBUTIONS.get(row.package, row.package) for row in rows}
    meta = {
        "date": date.today().isoformat(),
        **{key: installed[key] for key in ("version", "python", "jax", "jaxlib", "ffi_hash", "cpu")},
        "cores": os.cpu_count(),
        "packages": {package: version(name) for package, name in packages.items()},
        "emulate": str(jo.plan(1, 1, 1).contract),
        "enable": str(ENABLED),
    }
    return {"meta": meta, "rows": [asdict(row) for row in rows]}


DISTRIBUTIONS = {"tensorcircuit": "tensorcircuit-ng"}
"""Packages that are installed by another name."""
