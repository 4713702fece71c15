"""Whether two runs of the same benchmark agree."""

from __future__ import annotations

from dataclasses import dataclass

from .results import Results, Row

LEAST = 0.05
"""What a time may move by from run to run however little it spreads within one: clocks and voltages of a card at its
power limit follow its temperature, and the host's caches and memory are laid out anew in every process."""

KEY = ("method", "contract", "m", "n", "k", "batch", "dtype", "phi")


@dataclass(frozen=True)
class Difference:
    """A row whose times differ by more than the larger of its spreads and ``LEAST``."""

    row: str
    first_ms: float
    second_ms: float
    allowed: float

    def __str__(self) -> str:
        change = self.second_ms / self.first_ms - 1
        return f"{self.row}: {self.first_ms:.4g} and {self.second_ms:.4g} ms, {change:+.1%}; allowed are {self.allowed:.1%}"


@dataclass(frozen=True)
class Agreement:
    """What became of the rows that both runs have."""

    timed: int
    differences: list[Difference]
    same_errors: int
    rows: int
    only_one: list[str]
    """Rows that only one of the runs has."""


def agreement(first: Results, second: Results) -> Agreement:
    """Compare two files of results row by row: times within their spread, errors exactly."""
    ours, others = ({_key(row): row for row in of["rows"]} for of in (first, second))
    both = [key for key in ours if key in others]
    pairs = [(ours[key], others[key]) for key in both]
    timed = [(x, y) for x, y in pairs if x["ms"] is not None and y["ms"] is not None and x["timed_phi"] == x["phi"]]
    differences = []
    for x, y in timed:
        allowed = max(x["spread"] or 0.0, y["spread"] or 0.0, LEAST)
        if abs(y["ms"] - x["ms"]) > allowed * min(x["ms"], y["ms"]):
            differences.append(Difference(_name(x), x["ms"], y["ms"], allowed))
    errors = ("max_abs_error", "max_rel_error", "rms_error")
    same = sum(all(x[name] == y[name] for name in errors) for x, y in pairs)
    alone = [
        _name(row) for one, other in ((ours, others), (others, ours)) for key, row in one.items() if key not in other
    ]
    return Agreement(len(timed), differences, same, len(pairs), alone)


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in KEY)


def _name(row: Row) -> str:
    return f"{row['method']} {row['contract']}, (m, n, k) = ({row['m']}, {row['n']}, {row['k']}), phi = {row['phi']:g}"
