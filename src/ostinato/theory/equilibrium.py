"""A FIFO buffer that is full and drawn from uniformly: what happens to a rollout in it.

Each train step inserts R rollouts and then draws B of the N that are held, so a rollout is present at x = N / R draws.
With replacement it is hit by each of the B places of a draw with probability 1/N, without by a draw with B/N.

Source: arXiv 2604.08706, figure 2 shows these as histograms; the distributions are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.errors import ConfigError
from ostinato.theory.variance import Floats


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """`capacity` N, `rollouts_per_step` R, which divides it, and `batch_size` B. Raises `ConfigError` otherwise."""

    capacity: int
    rollouts_per_step: int
    batch_size: int
    replacement: bool = True

    def __post_init__(self) -> None:
        n, r, b = self.capacity, self.rollouts_per_step, self.batch_size
        if min(n, r, b) < 1 or n % r:
            raise ConfigError(f"expected R that divides N, and B >= 1, got N {n}, R {r}, B {b}")
        if not self.replacement and b > n:
            raise ConfigError(f"without replacement B {b} must not exceed N {n}")

    @property
    def horizon(self) -> int:
        """x = N / R: draws that a rollout is present at."""
        return self.capacity // self.rollouts_per_step

    def residence(self) -> Floats:
        """Probability that a drawn sample entered s steps ago, s = 0 .. x - 1: uniform, (x,)."""
        return np.full(self.horizon, 1 / self.horizon)

    def uses(self) -> Floats:
        """Probability that a rollout has left after k uses: Binomial(x B, 1/N), or Binomial(x, B/N) without
        replacement, (x B + 1,) or (x + 1,)."""
        if self.replacement:
            return _binomial(self.horizon * self.batch_size, 1 / self.capacity)
        return _binomial(self.horizon, self.batch_size / self.capacity)

    def steps_since_last_use(self) -> tuple[Floats, float]:
        """(shares g, share new): of all drawn samples, how many were last drawn g = 0 .. x - 1 steps ago, and how many
        are drawn for the first time; together 1.

        With q the probability that a draw misses a rollout and m = B/N its mean hits a draw, a life of x draws has
        x (m - (1 - q)) repeats within a draw, (x - g) (1 - q)^2 q^(g - 1) pairs of draws g >= 1 apart with none in
        between, and 1 - q^x first uses, out of x m.
        """
        x, m = self.horizon, self.batch_size / self.capacity
        q = (1 - 1 / self.capacity) ** self.batch_size if self.replacement else 1 - m
        gaps = np.arange(1, x)
        counts = np.concatenate([[x * (m - (1 - q))], (x - gaps) * (1 - q) ** 2 * q ** (gaps - 1.0)])
        return counts / (x * m), (1 - q**x) / (x * m)


def _binomial(trials: int, p: float) -> Floats:
    if p >= 1:
        return np.append(np.zeros(trials), 1.0)
    # Ratios of neighbors: (n - k) / (k + 1) * p / (1 - p), in logs so that no factor overflows.
    k = np.arange(trials, dtype=np.float64)
    steps = np.log((trials - k) / (k + 1)) + np.log(p) - np.log1p(-p)
    return np.asarray(np.exp(np.concatenate([[0.0], np.cumsum(steps)]) + trials * np.log1p(-p)))
