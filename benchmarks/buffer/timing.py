"""Taking turns: every contestant is timed in every round, so that a change of the machine's mood hits all alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MIN_CALLS = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds a call, one value a round: see `Pace`."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds a call in the round in the middle."""
        return statistics.median(self.rounds)

    @property
    def best(self) -> float:
        """Seconds a call in the fastest round."""
        return min(self.rounds)


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure: its value and the most favorable round, which decides whether a miss is within the noise."""

    value: float
    best: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure: rounds, and seconds a contestant and round.

    A round counts for the lower quartile of its calls, since one that another process interrupted says nothing;
    `amortized`: for their mean, in time of the processor, where work put off to every hundredth call belongs to all.
    """

    rounds: int = 5
    seconds: float = 0.08
    amortized: bool = False


def race(contestants: Mapping[str, Callable[[], Any]], pace: Pace) -> dict[str, Times]:
    """Time all contestants in turn, round after round; one call of each goes first, untimed."""
    for call in contestants.values():
        call()
    gc.collect()
    gc.freeze()  # tens of thousands of long-lived objects of one peer must not slow the others' collections
    rounds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(pace.rounds):
        for name, call in contestants.items():
            rounds[name].append(_round(call, pace))
    return {name: Times(tuple(values)) for name, values in rounds.items()}


def _round(call: Callable[[], Any], pace: Pace) -> float:
    call()  # after another contestant's turn its memory is cold
    if pace.amortized:
        return _mean_call(call, pace.seconds)
    calls: list[float] = []
    end = time.perf_counter() + pace.seconds
    while len(calls) < MIN_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        calls.append(time.perf_counter() - start)
    return sorted(calls)[len(calls) // 4]


def _mean_call(call: Callable[[], Any], seconds: float) -> float:
    count, start, begin = 0, time.perf_counter(), time.process_time()
    while count < MIN_CALLS or time.perf_counter() < start + seconds:
        call()
        count += 1
    return (time.process_time() - begin) / count


def ratio(slower: Times, faster: Times) -> Measured:
    """How many times faster the second is: median over the rounds, and the round that flatters it most."""
    ratios = [a / b for a, b in zip(slower.rounds, faster.rounds, strict=True)]
    return Measured(statistics.median(ratios), max(ratios))


def at_most(times: Times, reference: Times) -> Measured:
    """Time as a multiple of the reference's: median over the rounds, and the smallest."""
    ratios = [a / b for a, b in zip(times.rounds, reference.rounds, strict=True)]
    return Measured(statistics.median(ratios), min(ratios))


def milliseconds(times: Times) -> Measured:
    """The median and the best round in ms."""
    return Measured(1e3 * times.median, 1e3 * times.best)
