"""Turns: every variant has its own, and neither a pause of the host nor a compilation counts."""

from itertools import chain, repeat

import pytest

from jax_ozaki._bench import timing
from jax_ozaki._bench.timing import Turn, Variant, interval, take_turns


def test_every_variant_takes_every_turn():
    calls = []
    variants = [Variant(lambda i=i: calls.append(i), wait=lambda x: x, products=i + 1) for i in range(3)]
    take_turns(variants, seconds=1e-6, rounds=4)
    assert all(len(variant.ms) == 4 and min(variant.ms) > 0 for variant in variants)
    assert set(calls) == {0, 1, 2}


@pytest.fixture
def clocked(monkeypatch):
    """Makes a program of which every call takes the next of the seconds given, the last one for ever."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def make(*seconds, known=0.0):
        calls = chain(seconds, repeat(seconds[-1]))

        def call():
            now[0] += next(calls)

        return Variant(call, wait=lambda x: x, seconds=known)

    return make


def test_a_pause_does_not_move_a_turn(clocked):
    variant = clocked(*[0.002] * 7, 0.05, 0.002)
    Turn(variant, samples=8, calls=1, long=False).take()
    assert variant.ms == [pytest.approx(2)]


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_calls_that_wait_for_their_results(clocked, samples):
    variant = clocked(0.03)
    Turn(variant, samples, calls=1, long=False).take()
    assert variant.ms == [pytest.approx(30)]


@pytest.mark.parametrize(
    ("seconds", "known", "turn"),
    [
        ([0.0002], 0.0, (16, 16, False)),  # 16 calls are a sample
        ([9, 0.002], 0.0, (12, 2, False)),  # the first call compiles
        ([0.03], 0.0, (2, 1, False)),
        ([0.06], 0.0, (1, 1, True)),
        ([0.002], 0.5, (12, 2, False)),  # a pause made an earlier call look long
        ([99], 1.5, (1, 1, True)),  # planned without a call
    ],
)
def test_the_plan_of_a_turn(seconds, known, turn, clocked):
    planned = Turn.of(clocked(*seconds, known=known), 0.05)
    assert (planned.samples, planned.calls, planned.long) == turn


@pytest.mark.parametrize(("n", "cut"), [(1, 0), (2, 0), (3, 0), (6, 0), (8, 0), (9, 1), (12, 2)])
def test_interval_of_a_median(n, cut):
    """Against all the ways in which n values lie below and above the true median."""
    assert interval(list(range(n, 0, -1))) == (1 + cut, n - cut)
    below = [ways.bit_count() for ways in range(2**n)]
    covered, narrower = (sum(x < count < n - x for count in below) / 2**n for x in (cut, cut + 1))
    assert cut == 0 or covered >= 0.95
    assert narrower < 0.95
