"""How the weight of a rollout falls with its age: not at all, exponentially (free), or by any other law (vectorised).

A weight is (priority * factor(age)) ** exponent up to a factor common to all rows, which no probability depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows
from ostinato.errors import DataError
from ostinato.setting_checks import check_positive

Floats = NDArray[np.float64]
DecayLaw = Callable[[NDArray[np.int64]], Floats]
"""Ages in train steps -> factors, finite and at least 0, element by element; called with every age from 0 upwards."""

LIMIT = 1e250  # of a factor
HEADROOM = 230.0  # e^-230 = 1e-100: where the greatest weight stands after a rebase, leaving 300 decades upwards


@dataclass(frozen=True, slots=True)
class Exponential:
    """exp(-age / tau), age and tau in train steps (arXiv 2604.16918, equation of the effective priority).

    It multiplies the priority before the exponent, so the half-life of the drawing weight is tau ln 2 / exponent. No
    floor: a floor would draw the oldest rollouts more often than the law says. Raises `ConfigError` unless tau > 0.
    """

    tau: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", check_positive("tau of an exponential decay", self.tau))

    def __call__(self, ages: NDArray[np.int64]) -> Floats:
        return np.exp(-np.asarray(ages, np.float64) / self.tau)


class Weighting(Protocol):
    """Turns the priorities of rows into weights that share one unknown factor."""

    def rebase(self, columns: Columns, rows: Rows, priorities: Floats) -> None:
        """Choose the common factor so that the weights of these rows, all live ones, fit into float64."""

    def weights(self, columns: Columns, rows: Rows, priorities: Floats) -> Floats:
        """Weights of these rows at the current factor."""


class Undecayed:
    """priority ** exponent; divided by the greatest priority first once the plain power leaves float64."""

    def __init__(self, exponent: float) -> None:
        self.exponent, self.scale = exponent, 1.0

    def rebase(self, columns: Columns, rows: Rows, priorities: Floats) -> None:
        self.scale = 1.0
        powers = self.weights(columns, rows, priorities)
        greatest = float(powers.max(initial=0.0))
        if not 1e-150 < greatest < 1e200:
            self.scale = float(priorities.max(initial=0.0)) or 1.0

    def weights(self, columns: Columns, rows: Rows, priorities: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.asarray((priorities / self.scale) ** self.exponent)


class ExponentialWeighting:
    """priority ** a * exp(a * (birth - origin) / tau), with one shift for all: nothing to do when time passes.

    The common factor exp(-a * now / tau) is left out. `origin` is the newest birth at the last rebase, subtracted as
    an integer, so that the exponent is exact however large the train step is.
    """

    def __init__(self, exponent: float, decay: Exponential, age_from: str) -> None:
        self.exponent, self.rate, self.age_from = exponent, exponent / decay.tau, age_from
        self.origin, self.shift = 0, 0.0

    def rebase(self, columns: Columns, rows: Rows, priorities: Floats) -> None:
        positive = rows[priorities > 0]
        if len(positive):
            self.origin, self.shift = int(columns[self.age_from][positive].max()), 0.0
            self.shift = float(self._logarithms(columns, rows, priorities).max()) + HEADROOM

    def weights(self, columns: Columns, rows: Rows, priorities: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(self._logarithms(columns, rows, priorities) - self.shift))

    def _logarithms(self, columns: Columns, rows: Rows, priorities: Floats) -> Floats:
        if self.exponent == 0:
            return np.zeros(len(rows))
        logs = np.full(len(rows), -np.inf)
        np.log(priorities, out=logs, where=priorities > 0)
        return self.exponent * logs + self.rate * (columns[self.age_from][rows] - self.origin)


class AgeFactors:
    """factor(age) ** exponent for any other law, in a table by age, relative to the greatest factor among live rows.

    Raises `DataError` when the law gives a factor that is negative, infinite or NaN.
    """

    def __init__(self, exponent: float, decay: DecayLaw, age_from: str) -> None:
        self.exponent, self.decay, self.age_from = exponent, decay, age_from
        self.step = -1
        self._peak, self._powers = 1.0, np.empty(0)

    def renew(self, columns: Columns) -> None:
        """Take the ages of the live rows at the train step of these columns."""
        births = columns[self.age_from]
        if len(columns) < columns.span:
            births = births[columns.live()]
        newest, oldest = (int(bound) for bound in (births.max(), births.min())) if len(births) else (0, 0)
        factors = self._factors(max(columns.train_step - oldest, 0) + 1)
        self._peak = float(factors[max(columns.train_step - newest, 0) :].max()) or 1.0
        with np.errstate(over="ignore"):
            self._powers = np.minimum((factors / self._peak) ** self.exponent, LIMIT)
        self.step = columns.train_step

    def cover(self, columns: Columns, rows: Rows) -> bool:
        """Whether the table reaches to the ages of all these rows."""
        return int(self._ages(columns, rows).max(initial=0)) < len(self._powers)

    def __call__(self, columns: Columns, rows: Rows | slice) -> Floats:
        """Factors of these rows at the train step of the last `renew`; what stands in dead rows means nothing."""
        return self._powers.take(self._ages(columns, rows), mode="clip")

    def _ages(self, columns: Columns, rows: Rows | slice) -> NDArray[np.int64]:
        return np.asarray(self.step - columns[self.age_from][rows])

    def _factors(self, ages: int) -> Floats:
        factors = np.asarray(self.decay(np.arange(ages)))
        name = getattr(self.decay, "__name__", type(self.decay).__name__)
        if factors.shape != (ages,) or factors.dtype.kind not in "biuf":
            raise DataError(f"decay law {name} gives {factors.dtype} {factors.shape} for {ages} ages")
        good = (factors >= 0) & (factors < np.inf)
        if not good.all():
            age = int(np.flatnonzero(~good)[0])
            raise DataError(
                f"decay law {name} gives {factors[age]} at age {age}, expected a finite value of at least 0"
            )
        return factors.astype(np.float64)
