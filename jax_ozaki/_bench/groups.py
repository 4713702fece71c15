"""The cases of a shape, whose products take turns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .cases import Case, Timed
from .effort import LONG_ROUNDS
from .outcome import Outcome
from .timing import Turn, Variant, Watch, take_turns
from .unavailable import Unavailable

STAGE_ROUNDS = 3


class Group:
    """The cases of a shape, whose products take turns with the native product and a large INT8 one."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases
        self._int8_size, multiply = _int8_product()
        self._int8 = Variant(multiply)
        self._spans: list[tuple[float, float]] = []

    def __str__(self) -> str:
        return str(self.cases[0].shape)

    @property
    def timed(self) -> list[Timed]:
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


def _take(timed: Timed, i: int, case: Case, outcome: Outcome) -> None:
    """The turn of round ``i``."""
    if timed.turn is not None and (i % LONG_ROUNDS == 0 or not timed.turn.long):
        with _leaving_out(timed, case, outcome):
            timed.turn.take()


@contextmanager
def _leaving_out(timed: Timed, case: Case, outcome: Outcome) -> Iterator[None]:
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
