"""Numbers that follow the train step: the exponent of a correction, the share of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ostinato.buffer.settings import is_function
from ostinato.errors import ConfigError
from ostinato.setting_checks import MOST, check_finite, check_whole, shown


class Schedule(Protocol):
    """A number for every train step."""

    def __call__(self, train_step: int) -> float:
        """The value at this train step."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value at every step."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_finite("value of a schedule", self.value))

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
    the correction of prioritized replay. Raises `ConfigError` for steps below 1 and
    for numbers that are not finite.
    """

    start: float
    end: float
    steps: int
    begin: int = 0

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, check_finite(f"{name} of a schedule", getattr(self, name)))
        object.__setattr__(self, "steps", check_whole("steps of a schedule", self.steps, least=1))
        object.__setattr__(self, "begin", check_whole("begin of a schedule", self.begin, least=-MOST))

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
        object.__setattr__(self, "step", check_whole("step of a schedule", self.step, least=-MOST))
        for name in ("before", "after"):
            object.__setattr__(self, name, check_finite(f"{name} of a schedule", getattr(self, name)))

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
        number = check_finite(self.name, value)
        if not self.low <= number <= self.high:
            raise ConfigError(f"{self.name} must lie within [{self.low:g}, {self.high:g}], got {shown(value)}")
        return number


def bounded(name: str, value: Any, low: float, high: float) -> Bounded:
    """A number or schedule as a schedule within [low, high]. Raises `ConfigError` when it is outside or neither."""
    if isinstance(value, type):
        raise ConfigError(f"{name} is the class {value.__name__}, expected an instance: {value.__name__}(...)")
    return Bounded(name, value if is_function(value) else Constant(check_finite(name, value)), low, high)
