"""A shape and a phi: the errors of every method, and the programs whose times are still to be taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array

from .methods import Method
from .operands import Shape, operands
from .outcome import Outcome
from .pace import Pace
from .reference import Reference
from .results import COLUMNS, Row
from .timing import Turn, Variant
from .unavailable import Unavailable

TOLERANCE = 1e-9
"""Of the bounds, which are computed in floating point."""


@dataclass
class Timed:
    """A method, its program with the operands of a case, and the rows that the times belong to."""

    method: Method
    variant: Variant
    rows: list[Row]
    turn: Turn | None = None


class Case:
    """A shape and a phi, after ``first`` of the same shape. The operands are on the device only while they are needed."""

    def __init__(self, shape: Shape, phi: float, first: list[Case]) -> None:
        self.shape, self.phi = shape, phi
        self.timed: list[Timed] = []
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

    def check(self, methods: list[Method], reference: Reference, pace: Pace, outcome: Outcome) -> None:
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
                self.timed.append(Timed(method, variant, [row]))

    def _timed_with_the_first_phi(self, method: Method) -> Timed | None:
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
