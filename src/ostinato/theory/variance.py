"""How the second moment of a gradient grows with the age of the rollout it comes from.

sigma^2(s) is the second moment of the policy gradient estimated from a rollout whose policy is s train steps old, in
any unit: only its shape over ages enters a design. It must not fall with age.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_finite, check_positive

Floats = NDArray[np.float64]

MOST_ALPHA = 10.0
"""From 1/2 on nothing should be kept, so a larger exponent changes no plan; its powers overflow."""

ASSUMED_ALPHA = 0.1
"""The exponent where nothing was measured, an assumption."""

MOST_AGE = 1e9
"""Train steps: the oldest age that a measurement may name."""

MOST_MOMENT = 1e100
"""Second moments are within its inverse and it: their sums and products must stay floats."""


class VarianceLaw(Protocol):
    """sigma^2 over ages, and its mean over a buffer that keeps rollouts for x train steps."""

    @property
    def longest(self) -> float:
        """The largest x that the law says anything about; infinite for a formula."""

    def second_moment(self, age: ArrayLike) -> Floats:
        """sigma^2(age) for ages >= 0, any shape."""

    def mean_second_moment(self, x: ArrayLike) -> Floats:
        """(1/x) times the integral of sigma^2 from 0 to x, for x > 0, any shape."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """sigma(s) = (s / tau)^alpha, so the mean over ages 0 to x is (x / tau)^(2 alpha) / (2 alpha + 1).

    alpha 0: age costs nothing. tau only scales: no optimum depends on it. Raises `ConfigError` unless
    0 <= alpha <= 10 and tau > 0.  Source: arXiv 2604.08706, section 4.
    """

    alpha: float
    tau: float = 1.0

    def __post_init__(self) -> None:
        if check_finite("alpha", self.alpha) < 0:
            raise ConfigError(f"alpha must be at least 0 (variance cannot fall with age), got {self.alpha}")
        if self.alpha > MOST_ALPHA:
            raise ConfigError(f"alpha must be at most {MOST_ALPHA:g}, got {self.alpha}; from 0.5 on nothing is kept")
        check_positive("tau", self.tau)

    @property
    def longest(self) -> float:
        """Infinite."""
        return float("inf")

    def second_moment(self, age: ArrayLike) -> Floats:
        """(age / tau)^(2 alpha)."""
        return np.power(np.asarray(age, np.float64) / self.tau, 2 * self.alpha)

    def mean_second_moment(self, x: ArrayLike) -> Floats:
        """(x / tau)^(2 alpha) / (2 alpha + 1)."""
        return np.power(np.asarray(x, np.float64) / self.tau, 2 * self.alpha) / (2 * self.alpha + 1)


class MeasuredVariance:
    """sigma^2 measured at some ages, linear in between and constant before the first of them.

    Beyond the last age nothing is known: asking for it raises `DataError`, and no design goes there. `ages` (train
    steps, >= 0, rising) and `second_moments` (> 0, not falling) are (n,) with n >= 1; `monotone` makes a noisy
    measurement so. Ages up to 1e9, moments from 1e-100 to 1e100. Raises `DataError` otherwise.
    """

    def __init__(self, ages: ArrayLike, second_moments: ArrayLike) -> None:
        at, values = np.array(ages, np.float64), np.array(second_moments, np.float64)
        if at.ndim != 1 or at.shape != values.shape or not len(at):
            raise DataError(f"ages and second moments must be two lists of one length, got {at.shape}, {values.shape}")
        if not np.all(np.isfinite(at)) or at[0] < 0 or np.any(np.diff(at) <= 0):
            raise DataError(f"ages must be finite, at least 0 and rising, got {at.tolist()}")
        if at[-1] > MOST_AGE:
            raise DataError(f"ages must be at most {MOST_AGE:g} train steps, got {at[-1]:g}")
        if not np.all(np.isfinite(values)) or values[0] <= 0:
            raise DataError(f"second moments must be finite and above 0, got {values.tolist()}")
        if values.max() > MOST_MOMENT or values.min() < 1 / MOST_MOMENT:
            raise DataError(
                f"second moments must be within {1 / MOST_MOMENT:g} and {MOST_MOMENT:g}, got {values.tolist()}"
            )
        if np.any(falls := np.diff(values) < 0):
            i = int(np.flatnonzero(falls)[0])
            raise DataError(
                f"variance must not fall with age: {values[i]:g} at age {at[i]:g}, {values[i + 1]:g} at {at[i + 1]:g}"
            )
        first = at[0] > 0
        self._ages = np.concatenate([[0.0], at]) if first else at
        self._values = np.concatenate([values[:1], values]) if first else values
        areas = np.diff(self._ages) * (self._values[1:] + self._values[:-1]) / 2
        self._integral = np.concatenate([[0.0], np.cumsum(areas)])

    @property
    def longest(self) -> float:
        """One train step beyond the last measured age: a rollout of age s stays until s + 1."""
        return float(self._ages[-1]) + 1.0

    def second_moment(self, age: ArrayLike) -> Floats:
        """sigma^2(age); the last value holds for one train step."""
        s = np.asarray(age, np.float64)
        if np.any(s > self.longest):
            raise DataError(f"variance was measured up to age {self._ages[-1]:g}, asked for {float(np.max(s)):g}")
        return np.asarray(np.interp(s, self._ages, self._values))

    def mean_second_moment(self, x: ArrayLike) -> Floats:
        """(1/x) times the integral of the broken line from 0 to x, exact."""
        x = np.asarray(x, np.float64)
        at_x = self.second_moment(x)
        i = np.clip(np.searchsorted(self._ages, x, side="right") - 1, 0, len(self._ages) - 1)
        rest = (x - self._ages[i]) * (self._values[i] + at_x) / 2
        return np.asarray((self._integral[i] + rest) / x)


def monotone(values: ArrayLike, weights: ArrayLike) -> Floats:
    """The non-decreasing list nearest to `values` in weighted least squares: isotonic regression, (n,).

    `weights` > 0: how sure each value is, e.g. its count. Raises `DataError` on other shapes or values.
    Source: pool adjacent violators, Barlow et al., Statistical Inference under Order Restrictions, 1972.
    """
    y, w = np.array(values, np.float64), np.array(weights, np.float64)
    if y.ndim != 1 or y.shape != w.shape or not np.all(np.isfinite(y)) or not np.all(w > 0):
        raise DataError(f"expected finite values and weights above 0 of one length, got shapes {y.shape}, {w.shape}")
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for mean, weight in zip(y.tolist(), w.tolist(), strict=True):
        blocks.append((mean, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return np.repeat([b[0] for b in blocks], [b[2] for b in blocks]) if blocks else y
