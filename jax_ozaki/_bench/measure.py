"""Measure methods shape by shape: errors against the reference and their contract, then times in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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

    def __init__(self, budget: float | None) -> None:
        self._end = None if budget is None else time.monotonic() + budget

    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def turn(self, effort: Effort, share: float, variants: int) -> float:
        """Seconds of a turn, if ``share`` of what is left goes to the turns of so many variants."""
        if self._end is None:
            return effort.seconds
        left = max(0.0, self._end - time.monotonic())
        return max(1e-6, min(effort.seconds, share * left / (1.5 * variants * effort.rounds)))


def measure(
    chosen: Iterable[tuple[str, str]],
    shapes: list[Shape],
    phis: list[float],
    effort: Effort,
    progress: Callable[[str], None],
    save: Callable[[list[Row], list[LeftOut]], None],
) -> tuple[list[Row], list[LeftOut]]:
    """The rows of every shape and phi, and what was left out. ``save`` is called after every shape.

    Times are those of the first phi; a method whose time depends on the operands is timed with each.
    """
    deadline = Deadline(effort.budget)
    chosen = list(chosen)
    rows: list[Row] = []
    left_out: list[LeftOut] = []
    for i, shape in enumerate(shapes):
        if rows and deadline.passed():
            left_out.append(LeftOut("all", _spent(effort), str(shape)))
            save(rows, left_out)
            continue
        progress(f"{shape}: compiling")
        methods, missing = make(chosen, shape)
        left_out += [LeftOut(x.method, x.cause, str(shape)) for x in missing]
        of_shape: list[Row] = []
        share = 0.6 / (len(shapes) - i)
        for phi in phis:
            if of_shape and deadline.passed():
                left_out.append(LeftOut("all", _spent(effort), f"{shape}, phi = {phi:g}"))
                continue
            progress(f"{shape}, phi = {phi:g}")
            of_shape += _of_phi(methods, shape, phi, effort, deadline, share, of_shape, left_out, progress)
        rows += of_shape
        save(rows, left_out)
    return rows, left_out


def _spent(effort: Effort) -> str:
    return f"the budget of {effort.budget:g} s was spent"


def _of_phi(
    methods: list[Method],
    shape: Shape,
    phi: float,
    effort: Effort,
    deadline: Deadline,
    share: float,
    earlier: list[Row],
    left_out: list[LeftOut],
    progress: Callable[[str], None],
) -> list[Row]:
    """The rows of one shape and phi; times are taken from the ``earlier`` rows of the shape where they hold."""
    a, b = jax.block_until_ready(operands(shape, phi))
    reference = Reference(a, b)
    rows: list[tuple[Method, Row]] = []
    for method in methods:
        progress(f"{shape}, phi = {phi:g}: errors of {method.name} {method.promise.contract}")
        try:
            rows.append((method, _errors(method, shape, phi, reference, a, b)))
        except (jax.errors.JaxRuntimeError, Unavailable) as error:  # out of memory, a status of cuBLAS
            cause = " ".join(str(error).split())
            left_out.append(LeftOut(f"{method.name} {method.promise.contract}", cause, f"{shape}, phi = {phi:g}"))
    del reference

    known = {(row["method"], row["contract"]): row for row in earlier}
    timed = []
    for method, row in rows:
        before = known.get((row["method"], row["contract"]))
        if before is None or method.data_dependent:
            timed.append((method, row))
        else:
            row |= {name: before[name] for name in _TIME_COLUMNS}
    if timed:
        progress(f"{shape}, phi = {phi:g}: timing")
        _time(timed, shape, phi, effort, deadline, share, a, b)
        if not earlier:
            _time_stages(timed, effort, deadline, share, a, b)
    return [row for _, row in rows]


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


def _time(
    timed: list[tuple[Method, Row]],
    shape: Shape,
    phi: float,
    effort: Effort,
    deadline: Deadline,
    share: float,
    a: Array,
    b: Array,
) -> None:
    """Fill in the times: all methods, the native product and an INT8 product take turns."""
    native = Variant(partial(jax.jit(jnp.matmul), a, b))
    int8_size, multiply = _int8_product()
    int8 = Variant(multiply)
    variants = [native if method.name == "native" else method.variant(a, b) for method, _ in timed]
    turns = [native, int8, *(variant for variant in variants if variant is not native)]
    with Watch() as watch:
        take_turns(turns, seconds=deadline.turn(effort, share, len(turns)), rounds=effort.rounds)
    rate = 2 * int8_size**3 / int8.median
    for (_, row), variant in zip(timed, variants, strict=True):
        floor = shape.operations * row["moduli"] / rate if row["moduli"] else None
        row |= {
            "ms": variant.median,
            "ms_min": min(variant.ms),
            "ms_max": max(variant.ms),
            "spread": (max(variant.ms) - min(variant.ms)) / variant.median,
            "timed_phi": phi,
            "tflops": shape.operations / variant.median / 1e9,
            "native_ms": native.median,
            "ratio": native.median / variant.median,
            "int8_floor_ms": floor,
            "int8_floor_share": floor and floor / variant.median,
            **watch.summary(),
        }


def _time_stages(
    timed: list[tuple[Method, Row]], effort: Effort, deadline: Deadline, share: float, a: Array, b: Array
) -> None:
    """Fill in the times of the stages, method by method: they hold every intermediate array."""
    for method, row in timed:
        if method.stages is None:
            continue
        stages = method.stages(a, b)
        seconds = deadline.turn(effort, share / 4, len(stages)) / 2
        take_turns(list(stages.values()), seconds=seconds, rounds=min(STAGE_ROUNDS, effort.rounds))
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
