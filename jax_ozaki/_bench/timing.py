"""Times of programs under sustained load, and the state of the GPU meanwhile.

A GPU at its power limit runs a program faster or slower by what ran before it, so variants take turns in a new random
order each round. In a turn calls follow one another without a gap, the first third of them to warm up. Its value is the
median over samples of a few calls, which a pause of the host does not move.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Thread
from typing import Any

import jax

IN_FLIGHT = 32
"""Calls dispatched ahead at most, which is what XLA's CUDA client takes: enough that the GPU never waits for one of them."""
SAMPLES = 10
"""Of a turn, unless a tenth of it holds more than IN_FLIGHT / 2 calls, or less than one."""
PAUSE = 1.0
"""Seconds of a call beyond which no pause of the host can have made it look long."""
CONFIDENCE = 0.95


@dataclass
class Variant:
    """A program to time. ``call`` dispatches it and returns what ``wait`` waits for."""

    call: Callable[[], Any]
    products: int = 1
    """The calls of the timed function in one call of the program."""
    wait: Callable[[Any], Any] = jax.block_until_ready
    seconds: float = 0.0
    """What an earlier call took, where there was one besides the first."""
    ms: list[float] = field(default_factory=list)
    """Milliseconds a product, one value a turn."""

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    @property
    def spread(self) -> float | None:
        """Width of the interval that holds the true median, relative to the median; None of a single turn."""
        if len(self.ms) == 1:
            return None
        low, high = interval(self.ms)
        return (high - low) / self.median

    def run(self, samples: int, calls: int = 1) -> list[float]:
        """Seconds a call in each of ``samples`` samples of ``calls`` calls, all of them back to back."""
        ends = [time.perf_counter()]
        pending: deque[Any] = deque()
        for i in range(samples + 1):
            if i < samples:
                for _ in range(calls):
                    last = self.call()
                pending.append(last)
            if i > 0:  # one sample is on its way while the one before ends
                self.wait(pending.popleft())
                ends.append(time.perf_counter())
        return [(end - start) / calls for start, end in pairwise(ends)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of the true median by order statistics, whatever the distribution of the values.

    The innermost pair of values, equally far from both ends, that encloses it with a probability of CONFIDENCE; the
    outermost one where there are too few values for that.
    """
    n = len(values)
    outside = (2 * sum(math.comb(n, i) for i in range(cut + 1)) / 2**n for cut in range(n // 2))
    cut = max((cut for cut, share in enumerate(outside) if share <= 1 - CONFIDENCE), default=0)
    ordered = sorted(values)
    return ordered[cut], ordered[n - 1 - cut]


@dataclass(frozen=True)
class Turn:
    """So many samples of so many calls each, after half as many samples to warm up."""

    variant: Variant
    samples: int
    calls: int
    long: bool
    """Whether one call takes longer than the turn was meant to: it is the only one then, and nothing warms up."""

    @staticmethod
    def of(variant: Variant, seconds: float) -> Turn:
        """Plan a turn of ``seconds``, by a few calls unless one is known to take long."""

        def calls() -> int:
            return max(1, min(IN_FLIGHT // 2, int(seconds / SAMPLES / one)))

        one = variant.seconds
        if not one:
            variant.run(1)  # compiles
            (one,) = variant.run(1)
        if one < PAUSE:
            one = min(one, *variant.run(1))
        if one < seconds:
            one = statistics.median(variant.run(4, calls()))
        return Turn(variant, max(1, round(seconds / (calls() * one))), calls(), long=one >= seconds)

    def take(self) -> None:
        # Where a call itself waits for its result, as that of a program with a loop may, the sample before the last ends
        # with the last one. So there is one more than is timed.
        warm_up = self.samples // 2
        samples = self.variant.run(warm_up + self.samples + min(warm_up, 1), self.calls)
        timed = samples[warm_up : warm_up + self.samples]
        self.variant.ms.append(1e3 * statistics.median(timed) / self.variant.products)


def take_turns(variants: list[Variant], *, seconds: float, rounds: int) -> None:
    """Time every variant ``rounds`` times for ``seconds``."""
    turns = [Turn.of(variant, seconds) for variant in variants]
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(turns)
        for turn in turns:
            turn.take()


def _nvidia_smi(query: str, *options: str) -> list[str]:
    """The command that prints properties of the GPU that jax calls the first."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--id={first}", *options]


def query_gpu(*names: str) -> list[str]:
    """Properties as nvidia-smi knows them; unknown where there is none."""
    try:
        output = subprocess.run(_nvidia_smi(",".join(names)), capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ["unknown"] * len(names)
    return [value.strip() for value in output.strip().split(",")]


class Watch:
    """Samples power and clock in the background of a ``with`` block."""

    def __enter__(self) -> Watch:
        self._samples: list[tuple[float, float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        command = _nvidia_smi("power.draw,clocks.sm", "-lms", "250")
        with suppress(OSError):  # no NVIDIA driver
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self._reader = Thread(target=self._read, args=(self._process.stdout,))
            self._reader.start()
        return self

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            with suppress(ValueError):  # the last line may be cut off
                power, clock = map(float, line.split(","))
                self._samples.append((time.monotonic(), power, clock))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()

    def summary(self, spans: Sequence[tuple[float, float]] | None = None) -> dict[str, float]:
        """Median power, and the clock's median and range, within some spans of time.monotonic or all the time."""
        found = [(power, clock) for at, power, clock in self._samples if spans is None or _within(at, spans)]
        if not found:
            return {}
        power_w, sm_mhz = zip(*found, strict=True)
        return {
            "power_w": statistics.median(power_w),
            "sm_mhz": statistics.median(sm_mhz),
            "sm_mhz_min": min(sm_mhz),
            "sm_mhz_max": max(sm_mhz),
        }


def _within(at: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(start <= at <= end for start, end in spans)
