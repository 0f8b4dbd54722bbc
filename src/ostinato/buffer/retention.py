"""Retention: which rows stay? Each rule takes read-only columns and the train step and returns a keep mask.

Beyond these rules the buffer keeps the newest `capacity` rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.errors import ConfigError
from ostinato.staleness import staleness


class Retention(Protocol):
    """Says which rows stay; never changes anything."""

    def __call__(self, columns: Columns, train_step: int) -> NDArray[np.bool_]:
        """True where the row stays, shape (n,)."""


@dataclass(frozen=True, slots=True)
class MaxUses:
    """Rows leave after `n` draws; 1 makes a consume-once queue."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"max_uses must be at least 1, got {self.n}")

    def __call__(self, columns: Columns, train_step: int) -> NDArray[np.bool_]:
        return np.asarray(columns["uses"] < self.n)


@dataclass(frozen=True, slots=True)
class MaxStaleness:
    """Rows leave when their oldest token is more than `n` train steps old: age n stays, n + 1 goes."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ConfigError(f"max_staleness must be at least 0, got {self.n}")

    def __call__(self, columns: Columns, train_step: int) -> NDArray[np.bool_]:
        return np.asarray(staleness(train_step, columns["policy_version_min"]) <= self.n)
