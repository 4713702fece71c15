"""Measure methods shape by shape: errors against the reference and their contract, then times in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .methods import LeftOut, Method, make
from .operands import Shape, operands
from .reference import Reference
from .results import COLUMNS, Row
from .timing import Variant, Watch, take_turns
from .unavailable import Unavailable

TOLERANCE = 1e-9
"""Of the bounds, which are computed in floating point."""

STAGE_ROUNDS = 3


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    seconds: float
    """Of a turn, after half of that to warm up."""
    rounds: int
    budget: float | None = None
    """Seconds for everything: turns get shorter to fit, and nothing new is begun once it is spent."""


class Deadline:
    """What is left of the budget, from now on."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._end = None if effort.budget is None else time.monotonic() + effort.budget

    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def turn(self, share: float, variants: int) -> float:
        """Seconds of a turn, if ``share`` of what is left goes to the turns of so many variants."""
        effort = self._effort
        if self._end is None:
            return effort.seconds
        left = max(0.0, self._end - time.monotonic())
        return max(1e-6, min(effort.seconds, share * left / (1.5 * variants * effort.rounds)))


@dataclass
class Outcome:
    """The rows so far, and what was left out."""

    rows: list[Row] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, method: str, cause: object, where: str) -> None:
        self.left_out.append(LeftOut(method, " ".join(str(cause).split()), where))


Progress = Callable[[int, str], None]
"""Told how many pairs of shape and phi are done, and what is going on."""


def measure(
    chosen: list[tuple[str, str]], shapes: list[Shape], phis: list[float], effort: Effort, progress: Progress
) -> Iterator[Outcome]:
    """Measure every shape and phi; yields the outcome so far after every shape.

    Times are those of the first phi; a method whose time depends on the operands is timed with each.
    """
    deadline, outcome = Deadline(effort), Outcome()
    for i, shape in enumerate(shapes):
        if outcome.rows and deadline.passed():
            outcome.leave_out("all", _spent(effort), str(shape))
            continue
        progress(i * len(phis), f"{shape}: compiling")
        with ThreadPoolExecutor(max_workers=1) as worker:
            first = worker.submit(_problem, shape, phis[0])
            methods, missing = make(chosen, shape)
            a, b, reference = first.result()
        for x in missing:
            outcome.leave_out(x.method, x.cause, str(shape))
        turns = _Turns(effort, deadline, share=0.6 / (len(shapes) - i))
        of_shape: list[Row] = []
        for j, phi in enumerate(phis):
            where = f"{shape}, phi = {phi:g}"
            if of_shape and deadline.passed():
                outcome.leave_out("all", _spent(effort), where)
                continue
            progress(i * len(phis) + j, where)
            if j > 0:
                a, b, reference = _problem(shape, phi)
            rows = _errors_of(methods, shape, phi, reference, a, b, outcome)
            timed = [(method, row) for method, row in rows if not _known(row, of_shape, method)]
            try:
                turns.time(timed, a, b)
                if not of_shape:
                    turns.time_stages(timed, a, b)
            except jax.errors.JaxRuntimeError as error:
                outcome.leave_out("times", error, where)
            of_shape += [row for _, row in rows]
        outcome.rows += of_shape
        yield outcome
    yield outcome


def _spent(effort: Effort) -> str:
    return f"the budget of {effort.budget:g} s was spent"


def _problem(shape: Shape, phi: float) -> tuple[Array, Array, Reference]:
    """Operands and their product, which the CPU may make in a thread of its own while methods compile."""
    with jax.enable_x64(True):  # a setting of the thread
        a, b = jax.block_until_ready(operands(shape, phi))
        return a, b, Reference(a, b)


def _errors_of(
    methods: list[Method], shape: Shape, phi: float, reference: Reference, a: Array, b: Array, outcome: Outcome
) -> list[tuple[Method, Row]]:
    """A row for every method, without its times."""
    rows: list[tuple[Method, Row]] = []
    for method in methods:
        try:
            rows.append((method, _errors(method, shape, phi, reference, a, b)))
        except (jax.errors.JaxRuntimeError, Unavailable) as error:  # out of memory, a status of cuBLAS
            outcome.leave_out(f"{method.name} {method.promise.contract}", error, f"{shape}, phi = {phi:g}")
    return rows


def _errors(method: Method, shape: Shape, phi: float, reference: Reference, a: Array, b: Array) -> Row:
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


_TIME_COLUMNS = (
    *("ms", "ms_min", "ms_max", "spread", "timed_phi", "tflops", "native_ms", "ratio", "int8_floor_ms"),
    *("int8_floor_share", "power_w", "sm_mhz", "sm_mhz_min", "sm_mhz_max", "stages_ms"),
)


def _known(row: Row, earlier: list[Row], method: Method) -> bool:
    """Whether the times of the method hold from an earlier phi; they are filled in then."""
    same = [x for x in earlier if (x["method"], x["contract"]) == (row["method"], row["contract"])]
    if not same or method.data_dependent:
        return False
    row |= {name: same[0][name] for name in _TIME_COLUMNS}
    return True


@dataclass(frozen=True)
class _Turns:
    """Timing, with ``share`` of what is left of the budget."""

    effort: Effort
    deadline: Deadline
    share: float

    def time(self, timed: list[tuple[Method, Row]], a: Array, b: Array) -> None:
        """Fill in the times: the methods, the native product and an INT8 product take turns."""
        if not timed:
            return
        native = Variant(partial(jax.jit(jnp.matmul), a, b))
        int8_size, multiply = _int8_product()
        int8 = Variant(multiply)
        variants = [native if method.name == "native" else method.variant(a, b) for method, _ in timed]
        turns = [native, int8, *(variant for variant in variants if variant is not native)]
        with Watch() as watch:
            take_turns(turns, seconds=self.deadline.turn(self.share, len(turns)), rounds=self.effort.rounds)
        rate = 2 * int8_size**3 / int8.median
        for (_, row), variant in zip(timed, variants, strict=True):
            operations = 2 * row["batch"] * row["m"] * row["n"] * row["k"]
            floor = operations * row["moduli"] / rate if row["moduli"] else None
            row |= {
                "ms": variant.median,
                "ms_min": min(variant.ms),
                "ms_max": max(variant.ms),
                "spread": (max(variant.ms) - min(variant.ms)) / variant.median,
                "timed_phi": row["phi"],
                "tflops": operations / variant.median / 1e9,
                "native_ms": native.median,
                "ratio": native.median / variant.median,
                "int8_floor_ms": floor,
                "int8_floor_share": floor and floor / variant.median,
                **watch.summary(),
            }

    def time_stages(self, timed: list[tuple[Method, Row]], a: Array, b: Array) -> None:
        """Fill in the times of the stages, method by method: they hold every intermediate array."""
        for method, row in timed:
            if method.stages is None:
                continue
            stages = method.stages(a, b)
            seconds = self.deadline.turn(self.share / 4, len(stages)) / 2
            take_turns(list(stages.values()), seconds=seconds, rounds=min(STAGE_ROUNDS, self.effort.rounds))
            row["stages_ms"] = {name: variant.median for name, variant in stages.items()}


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
