"""Measure methods: compile them for all shapes, check their errors, then time them in rounds over everything.

A round goes through every shape and lets its methods take turns, so that the turns of a method lie as far apart as the
run is long, and what differs between them differs between runs, too. Nothing else runs on the host meanwhile.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import cublas
from .methods import LeftOut, Method, make
from .operands import Shape, operands
from .reference import Reference
from .results import COLUMNS, Row
from .timing import Turn, Variant, Watch, take_turns
from .unavailable import Unavailable

TOLERANCE = 1e-9
"""Of the bounds, which are computed in floating point."""

LONG_ROUNDS = 3
"""A product that takes longer than a turn takes part in every third round."""

STAGE_ROUNDS = 3


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    seconds: float
    """Of a turn, after half of that to warm up."""
    rounds: int
    longest: float = float("inf")
    """Seconds of a product beyond which a method is left out, as told from the shape before."""
    budget: float | None = None
    """Seconds for everything: turns get shorter to fit, and nothing new is begun once it is spent."""


class Deadline:
    """What is left of the budget, from now on."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._end = None if effort.budget is None else time.monotonic() + effort.budget

    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def turn(self, share: float, variants: list[Variant]) -> float:
        """Seconds of a turn, if ``share`` of what is left goes to the turns of the variants."""
        effort = self._effort
        if self._end is None:
            return effort.seconds
        long = sum(variant.seconds for variant in variants if variant.seconds > effort.seconds)
        left = max(0.0, share * (self._end - time.monotonic()) - long * -(-effort.rounds // LONG_ROUNDS))
        return max(1e-6, min(effort.seconds, left / (1.5 * len(variants) * effort.rounds)))


@dataclass
class Outcome:
    """The rows so far, and what was left out."""

    rows: list[Row] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds of every phase of the run."""

    def leave_out(self, method: str, cause: object, where: str) -> None:
        self.left_out.append(LeftOut(method, " ".join(str(cause).split()), where))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.monotonic() - start


Progress = Callable[[int, str], None]
"""Told how many steps are done, of ``steps``, and what is going on."""


def steps(shapes: list[Shape], phis: list[float], effort: Effort) -> int:
    return len(shapes) * len(phis) + effort.rounds


def measure(
    chosen: list[tuple[str, str]], shapes: list[Shape], phis: list[float], effort: Effort, progress: Progress
) -> Iterator[Outcome]:
    """Measure every shape and phi; yields the outcome so far after the errors of a shape and after every round.

    Times are those of the first phi; a method whose time depends on the operands is timed with each.
    """
    deadline, outcome = Deadline(effort), Outcome()
    with _References(shapes, phis) as references:
        compiled: dict[Shape, list[Method]] = {}
        for shape in shapes:
            if compiled and deadline.passed():
                outcome.leave_out("all", _spent(effort), str(shape))
                continue
            progress(0, f"{shape}: compiling")
            with outcome.phase("compile"):
                compiled[shape], missing = make(chosen, shape)
            for x in missing:
                outcome.leave_out(x.method, x.cause, str(shape))

        groups: list[_Group] = []
        pace = _Pace(effort.longest)
        for shape, methods in compiled.items():
            cases: list[_Case] = []
            for phi in phis:
                where = f"{shape}, phi = {phi:g}"
                if (groups or cases) and deadline.passed():
                    outcome.leave_out("all", _spent(effort), where)
                    continue
                progress(len(groups) * len(phis) + len(cases), f"{where}: errors")
                with outcome.phase("references"):
                    reference = references.of(shape, phi)
                with outcome.phase("errors"):
                    cases.append(_Case(shape, phi, cases[:1]))
                    cases[-1].check(methods, reference, pace, outcome)
            if cases:
                groups.append(_Group(cases))
                yield outcome

    done = len(shapes) * len(phis)
    progress(done, "planning")
    with outcome.phase("rounds"):
        seconds = deadline.turn(0.8, [timed.variant for group in groups for timed in group.timed])
        for group in groups:
            group.plan(seconds, outcome)
    order = random.Random(0)
    with Watch() as watch:
        for i in range(effort.rounds):
            if i > 0 and deadline.passed():
                outcome.leave_out("all", _spent(effort), f"rounds from {i + 1} on")
                break
            with outcome.phase("rounds"):
                for group in groups:
                    progress(done + i, f"{group}, round {i + 1}")
                    group.round(i, order, watch, outcome)
            yield outcome
    cublas.release_workspace()  # stages hold all that goes between them
    for group in groups:
        if deadline.passed():
            outcome.leave_out("stages", _spent(effort), str(group))
            continue
        progress(done + effort.rounds, f"{group}, stages")
        with outcome.phase("stages"):
            group.time_stages(seconds, outcome)
    yield outcome


def _spent(effort: Effort) -> str:
    return f"the budget of {effort.budget:g} s was spent"


class _References:
    """References made in a thread of their own on the CPU, while methods compile and their products run."""

    def __init__(self, shapes: list[Shape], phis: list[float]) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._found = {(shape, phi): self._worker.submit(_reference, shape, phi) for shape in shapes for phi in phis}

    def __enter__(self) -> _References:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.shutdown(cancel_futures=True)

    def of(self, shape: Shape, phi: float) -> Reference:
        return self._found.pop((shape, phi)).result()


def _reference(shape: Shape, phi: float) -> Reference:
    with jax.enable_x64(True):  # a setting of the thread
        return Reference(*operands(shape, phi))


class _Pace:
    """How long products took, to tell what those of the next shape will."""

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self._found: dict[tuple[str, str, float | None], tuple[float, float]] = {}

    def note(self, method: Method, shape: Shape, phi: float, seconds: float) -> None:
        self._found[_key(method, phi)] = (seconds, _work(shape))

    def expected(self, method: Method, shape: Shape, phi: float) -> float:
        """Seconds, in proportion to m n k; 0 where nothing is known."""
        seconds, work = self._found.get(_key(method, phi), (0.0, 1))
        return seconds * _work(shape) / work


def _key(method: Method, phi: float) -> tuple[str, str, float | None]:
    return method.name, method.promise.contract, phi if method.data_dependent else None


def _work(shape: Shape) -> int:
    return 2 * shape.batch * shape.m * shape.n * shape.k


@dataclass
class _Timed:
    """A method, its program with the operands of a case, and the rows that the times belong to."""

    method: Method
    variant: Variant
    rows: list[Row]
    turn: Turn | None = None


class _Case:
    """A shape and a phi, after ``first`` of the same shape. The operands are on the device only while they are needed."""

    def __init__(self, shape: Shape, phi: float, first: list[_Case]) -> None:
        self.shape, self.phi = shape, phi
        self.timed: list[_Timed] = []
        self._first = first
        self._operands: tuple[Array, ...] = ()

    def __str__(self) -> str:
        return f"{self.shape}, phi = {self.phi:g}"

    @contextmanager
    def operands(self) -> Iterator[tuple[Array, Array]]:
        a, b = self._operands = jax.block_until_ready(operands(self.shape, self.phi))
        try:
            yield a, b
        finally:
            self._operands = ()

    def call(self, method: Method) -> Any:
        return method.call(*self._operands)

    def check(self, methods: list[Method], reference: Reference, pace: _Pace, outcome: Outcome) -> None:
        """A row for every method, without its times."""
        with self.operands() as (a, b):
            for method in methods:
                title = f"{method.name} {method.promise.contract}"
                if (expected := pace.expected(method, self.shape, self.phi)) > pace.longest:
                    cause = (
                        f"a product would take about {expected:.2g} s, more than the {pace.longest:g} s of --longest"
                    )
                    outcome.leave_out(title, cause, str(self))
                    continue
                try:
                    row = _errors(method, self.shape, self.phi, reference, a, b)
                    outcome.rows.append(row)
                    if known := self._timed_with_the_first_phi(method):
                        known.rows.append(row)
                        continue
                    seconds = method.seconds(a, b)
                except (jax.errors.JaxRuntimeError, Unavailable) as error:  # out of memory, a status of cuBLAS
                    outcome.leave_out(title, error, str(self))
                    continue
                pace.note(method, self.shape, self.phi, seconds)
                variant = Variant(partial(self.call, method), wait=method.wait, seconds=seconds)
                self.timed.append(_Timed(method, variant, [row]))

    def _timed_with_the_first_phi(self, method: Method) -> _Timed | None:
        """Where the times of a method are that do not depend on the operands."""
        if method.data_dependent:
            return None
        return next((timed for case in self._first for timed in case.timed if timed.method is method), None)


def _errors(method: Method, shape: Shape, phi: float, reference: Reference, a: Array, b: Array) -> Row:
    """The row, without times."""
    row: Row = dict.fromkeys(COLUMNS)
    c = method.product(a, b)
    row |= {
        "method": method.name,
        "contract": method.promise.contract,
        "guarantee": method.promise.guarantee,
        **{name: getattr(shape, name) for name in ("m", "n", "k", "batch", "dtype")},
        "phi": phi,
        "bits": method.promise.bits,
        "workspace_bytes": method.workspace_bytes,
        **method.facts,
        **method.found(a, b),
        **reference.errors(c, method.promise.bound(reference.magnitudes)),
    }
    row["within_contract"] = row["share"] <= 1 + TOLERANCE
    return row


class _Group:
    """The cases of a shape, whose products take turns with the native product and a large INT8 one."""

    def __init__(self, cases: list[_Case]) -> None:
        self.cases = cases
        self._int8_size, multiply = _int8_product()
        self._int8 = Variant(multiply)
        self._spans: list[tuple[float, float]] = []

    def __str__(self) -> str:
        return str(self.cases[0].shape)

    @property
    def timed(self) -> list[_Timed]:
        return [timed for case in self.cases for timed in case.timed]

    def plan(self, seconds: float, outcome: Outcome) -> None:
        self._int8_turn = Turn.of(self._int8, seconds)
        for case in self.cases:
            with case.operands():
                for timed in case.timed:
                    with _leaving_out(timed, case, outcome):
                        timed.turn = Turn.of(timed.variant, seconds)

    def round(self, i: int, order: random.Random, watch: Watch, outcome: Outcome) -> None:
        """One turn of every method, and of the INT8 product with those of the first phi."""
        start = time.monotonic()
        for case in self.cases:
            takes: list[Callable[[], None]] = [partial(_take, timed, i, case, outcome) for timed in case.timed]
            if case is self.cases[0]:
                takes.append(self._int8_turn.take)
            order.shuffle(takes)
            with case.operands():
                for take in takes:
                    take()
        self._spans.append((start, time.monotonic()))
        self._fill(watch.summary(self._spans))

    def _fill(self, state: dict[str, float]) -> None:
        """Write the times so far into the rows."""
        native = next((x.variant.median for x in self.timed if x.method.name == "native" and x.variant.ms), None)
        rate = 2 * self._int8_size**3 / self._int8.median
        for timed in self.timed:
            if not timed.variant.ms:
                continue
            first = timed.rows[0]
            operations, ms = 2 * first["batch"] * first["m"] * first["n"] * first["k"], timed.variant.median
            floor = operations * first["moduli"] / rate if first["moduli"] else None
            for row in timed.rows:
                row |= {
                    "ms": ms,
                    "ms_min": min(timed.variant.ms),
                    "ms_max": max(timed.variant.ms),
                    "turns": len(timed.variant.ms),
                    "spread": timed.variant.spread,
                    "timed_phi": first["phi"],
                    "tflops": operations / ms / 1e9,
                    "native_ms": native,
                    "ratio": native and native / ms,
                    "int8_floor_ms": floor,
                    "int8_floor_share": floor and floor / ms,
                    **state,
                }

    def time_stages(self, seconds: float, outcome: Outcome) -> None:
        """Fill in the times of the stages, method by method: they hold every intermediate array."""
        for case in self.cases:
            for timed in case.timed:
                if timed.method.stages is None:
                    continue
                with case.operands() as (a, b), _leaving_out(timed, case, outcome):
                    stages = timed.method.stages(a, b)
                    take_turns(list(stages.values()), seconds=seconds / 2, rounds=STAGE_ROUNDS)
                    for row in timed.rows:
                        row["stages_ms"] = {name: variant.median for name, variant in stages.items()}


def _take(timed: _Timed, i: int, case: _Case, outcome: Outcome) -> None:
    """The turn of round ``i``."""
    if timed.turn is not None and (i % LONG_ROUNDS == 0 or not timed.turn.long):
        with _leaving_out(timed, case, outcome):
            timed.turn.take()


@contextmanager
def _leaving_out(timed: _Timed, case: _Case, outcome: Outcome) -> Iterator[None]:
    """What fails, for want of memory, takes no further turn."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, Unavailable) as error:
        timed.turn = None
        outcome.leave_out(f"{timed.method.name} {timed.method.promise.contract}", f"its times: {error}", str(case))


@cache
def _int8_product() -> tuple[int, Callable[[], Array]]:
    """The size n of an s8 x s8 -> s32 product of XLA that is bound by nothing but INT8, and the call of it."""
    on_gpu = jax.default_backend() == "gpu"
    n = 8192 if on_gpu else 256
    x, y = jnp.asarray(np.random.default_rng(n).integers(-128, 128, (2, n, n), np.int8))

    def multiply(x: Array, y: Array) -> Array:
        # Both contiguous along k, as cuBLASLt wants them.
        return lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)

    options: dict[str, Any] | None = {"xla_gpu_enable_triton_gemm": False} if on_gpu else None
    return n, partial(jax.jit(multiply).lower(x, y).compile(options), x, y)
