"""Measure methods: compile them for all shapes, check their errors, then time them in rounds over everything.

A round goes through every shape and lets its methods take turns, so that the turns of a method lie as far apart as the
run is long, and what differs between them differs between runs, too. Nothing else runs on the host meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from . import cublas
from .cases import Case
from .effort import Deadline, Effort
from .groups import Group
from .methods import Method, make
from .operands import Shape
from .outcome import Outcome
from .pace import Pace
from .reference_thread import ReferenceThread
from .timing import Watch

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
    with ReferenceThread(shapes, phis) as references:
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

        groups: list[Group] = []
        pace = Pace(effort.longest)
        for shape, methods in compiled.items():
            cases: list[Case] = []
            for phi in phis:
                where = f"{shape}, phi = {phi:g}"
                if (groups or cases) and deadline.passed():
                    outcome.leave_out("all", _spent(effort), where)
                    continue
                progress(len(groups) * len(phis) + len(cases), f"{where}: errors")
                with outcome.phase("references"):
                    reference = references.of(shape, phi)
                with outcome.phase("errors"):
                    cases.append(Case(shape, phi, cases[:1]))
                    cases[-1].check(methods, reference, pace, outcome)
            if cases:
                groups.append(Group(cases))
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
