"""Times of programs under sustained load, and the state of the GPU meanwhile.

A GPU at its power limit runs a program faster or slower by what ran before it. So variants take turns in a
new random order each round; a turn warms up, then dispatches calls back to back and waits once, at its end.
"""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jax

IN_FLIGHT = 6
"""Calls dispatched ahead: enough that the GPU never waits, few enough that their results fit."""


@dataclass
class Variant:
    """A program to time. ``call`` dispatches it and returns what ``wait`` waits for."""

    call: Callable[[], Any]
    products: int = 1
    """The calls of the timed function in one call of the program."""
    wait: Callable[[Any], Any] = jax.block_until_ready
    ms: list[float] = field(default_factory=list)
    """Milliseconds a product, one value a round."""

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    def run(self, calls: int) -> float:
        """Seconds of ``calls`` calls, back to back."""
        pending: deque[Any] = deque()
        start = time.perf_counter()
        for _ in range(calls):
            if len(pending) == IN_FLIGHT:
                self.wait(pending.popleft())
            pending.append(self.call())
        self.wait(pending[-1])
        return time.perf_counter() - start


def take_turns(variants: list[Variant], *, seconds: float, rounds: int) -> None:
    """Time every variant ``rounds`` times for ``seconds``, each after half of that to warm up.

    A variant of which one call takes longer is called once, and not to warm up.
    """
    calls = {}
    for i, variant in enumerate(variants):
        variant.run(1)  # compiles
        one = variant.run(1)
        few = math.ceil(seconds / 5 / one)
        calls[i] = math.ceil(seconds * few / variant.run(few)) if one < seconds else 1
    order, shuffle = list(calls), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for i in order:
            if warm_up := calls[i] // 2:
                variants[i].run(warm_up)
            variants[i].ms.append(1e3 * variants[i].run(calls[i]) / calls[i] / variants[i].products)


def query_gpu(*names: str) -> list[str]:
    """Properties as nvidia-smi knows them; unknown where there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ["unknown"] * len(names)
    return [value.strip() for value in output.strip().split(",")]


class Watch:
    """Samples power and clock in the background of a ``with`` block."""

    process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Watch:
        query = "--query-gpu=power.draw,clocks.sm"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0", "-lms", "100"]
        with suppress(OSError):  # no NVIDIA driver
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.power_w: list[float] = []
        self.sm_mhz: list[float] = []
        if self.process is None:
            return
        self.process.terminate()
        for line in self.process.communicate()[0].splitlines():
            try:
                power, clock = map(float, line.split(","))
            except ValueError:  # the last line may be cut off
                continue
            self.power_w.append(power)
            self.sm_mhz.append(clock)

    def summary(self) -> dict[str, float]:
        """Median power, and the clock's median and range."""
        if not self.sm_mhz:
            return {}
        return {
            "power_w": statistics.median(self.power_w),
            "sm_mhz": statistics.median(self.sm_mhz),
            "sm_mhz_min": min(self.sm_mhz),
            "sm_mhz_max": max(self.sm_mhz),
        }
