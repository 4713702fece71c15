"""How long to measure, and what of it is left."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .timing import Variant

LONG_ROUNDS = 3
"""A product that takes longer than a turn takes part in every third round."""


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
