"""What a run has so far: rows, what was left out and why, and where its time went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .methods import LeftOut
from .results import Row


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
