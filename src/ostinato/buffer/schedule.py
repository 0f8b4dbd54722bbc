"""Numbers that follow the train step: the exponent of a correction, the share of a mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from ostinato.errors import ConfigError


class Schedule(Protocol):
    """A number for every train step."""

    def __call__(self, train_step: int) -> float:
        """The value at this train step."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value at every step."""

    value: float

    def __post_init__(self) -> None:
        _finite("value", self.value)

    def __call__(self, train_step: int) -> float:
        return self.value

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value."""
        return self.value, self.value


@dataclass(frozen=True, slots=True)
class Linear:
    """`start` up to train step `begin`, then straight to `end` within `steps` train steps, then `end`.

    Linear(0, 0.5, T) is the warm-up 0.5 * min(1, t / T) of arXiv 2602.01915; Linear(0.4, 1, T) the usual annealing of
    the correction of prioritized replay. Raises `ConfigError` for steps below 1.
    """

    start: float
    end: float
    steps: int
    begin: int = 0

    def __post_init__(self) -> None:
        _finite("start", self.start)
        _finite("end", self.end)
        if self.steps < 1:
            raise ConfigError(f"a linear schedule takes at least 1 step, got {self.steps}")

    def __call__(self, train_step: int) -> float:
        share = min(1.0, max(0.0, (train_step - self.begin) / self.steps))
        return self.end if share == 1.0 else self.start + (self.end - self.start) * share

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value."""
        return min(self.start, self.end), max(self.start, self.end)


@dataclass(frozen=True, slots=True)
class StepAfter:
    """`before` up to and including train step `step`, `after` from the next one on."""

    step: int
    before: float
    after: float

    def __post_init__(self) -> None:
        _finite("before", self.before)
        _finite("after", self.after)

    def __call__(self, train_step: int) -> float:
        return self.after if train_step > self.step else self.before

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value."""
        return min(self.before, self.after), max(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A schedule whose values must lie within [low, high]; `name` is the setting it belongs to.

    Raises `ConfigError` at construction when the bounds of the schedule are known and too wide, else when a value
    outside is met.
    """

    name: str
    schedule: Schedule
    low: float
    high: float

    def __post_init__(self) -> None:
        for value in getattr(self.schedule, "bounds", ()):
            self._checked(value)

    def __call__(self, train_step: int) -> float:
        return self._checked(self.schedule(train_step))

    def _checked(self, value: float) -> float:
        if not self.low <= value <= self.high:
            raise ConfigError(f"{self.name} must lie within [{self.low:g}, {self.high:g}], got {value}")
        return value


def bounded(name: str, value: float | Schedule, low: float, high: float) -> Bounded:
    """A number or schedule as a schedule within [low, high]. Raises `ConfigError` when it is outside or NaN."""
    return Bounded(name, value if callable(value) else Constant(value), low, high)


def _finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{name} of a schedule must be finite, got {value}")
