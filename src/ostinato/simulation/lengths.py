"""Completion lengths relative to their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_finite


class Lengths(Protocol):
    """A distribution of positive numbers with mean 1."""

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """n independent lengths."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every completion is as long as any other."""

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """n ones."""
        return np.ones(n)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp(sigma z - sigma^2 / 2) with z standard normal. Raises `ConfigError` unless 0 <= sigma <= 4."""

    sigma: float

    def __post_init__(self) -> None:
        if not 0 <= check_finite("sigma of log-normal lengths", self.sigma) <= 4:
            raise ConfigError(f"sigma of log-normal lengths must be within [0, 4], got {self.sigma}")

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """n lengths."""
        return np.asarray(np.exp(self.sigma * rng.standard_normal(n) - self.sigma**2 / 2))


class Empirical:
    """Drawn from observed lengths, e.g. tokens of a run's completions. Raises `DataError` unless all are positive."""

    def __init__(self, observed: Sequence[float] | NDArray[np.float64]) -> None:
        values = np.asarray(observed, np.float64)
        if values.ndim != 1 or not len(values) or not (np.isfinite(values).all() and values.min() > 0):
            raise DataError(f"observed lengths must be a list of positive numbers, got {values.size} values")
        self._values = values / math.fsum(values) * len(values)

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """n of the observed lengths, over their mean."""
        return self._values[rng.integers(len(self._values), size=n)]
