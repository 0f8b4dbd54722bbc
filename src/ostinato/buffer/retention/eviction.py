"""Eviction orders: who leaves when there is no room?

Asking an order changes nothing: it may be asked again, and rows it named may be kept after all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.retention.arrivals import NONE, Rows
from ostinato.buffer.retention.scores import Score, scores_of
from ostinato.buffer.settings import is_function
from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_not_negative, check_positive, shown


@runtime_checkable
class Eviction(Protocol):
    """Says who makes room; never changes the buffer. One that keeps an index belongs to one buffer."""

    def victims(self, columns: Columns, rows_over: int, n_new: int) -> Rows:
        """At least `rows_over` live rows that leave, ascending; asked after every append, also with room left.

        The capacity is `len(columns) - rows_over` rollouts. The last `n_new` live rows have just come, and may be
        among those that leave at once.
        """

    def next_victims(self, columns: Columns, n: int) -> Rows:
        """The n live rows that leave when bytes run out, ascending; all of them when there are fewer."""


@dataclass(frozen=True, slots=True)
class OldestFirst:
    """First in, first out: the buffer keeps the newest (arXiv 2604.08706, section 2). O(1) a rollout."""

    def victims(self, columns: Columns, rows_over: int, n_new: int) -> Rows:
        return self.next_victims(columns, rows_over)

    def next_victims(self, columns: Columns, n: int) -> Rows:
        return columns.oldest(n)


Leaf = Score
"""Sampling weight of each given row, at least 0: float64 (len(rows),)."""

LEAF_FLOOR = 1e-8


@dataclass(frozen=True, slots=True)
class SmartEviction:
    """Old, unlikely and often drawn rollouts leave first: the optional eviction of FreshPER's code (arXiv 2604.16918).

        score = (age / tau) * 1 / (leaf + 1e-6) * (1 + log(1 + uses) / 10),   the greatest leaves

    `age`: train steps since insertion, now. `leaf`: the weight the sampler would give; by default
    max(priority exp(-age / tau), 1e-8)^exponent, that paper's. Of equal scores the older leaves.
    One vectorized pass over all live rows for each batch that leaves. Raises `ConfigError` unless tau > 0 and
    exponent >= 0, `DataError` when `leaf` raises or gives anything but weights of at least 0.
    """

    tau: float
    exponent: float = 0.6
    leaf: Leaf | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", check_positive("tau", self.tau))
        object.__setattr__(self, "exponent", check_not_negative("exponent", self.exponent))
        if self.leaf is not None and not is_function(self.leaf):
            raise ConfigError(f"leaf must be None or a function of columns and rows, got {shown(self.leaf)}")

    def victims(self, columns: Columns, rows_over: int, n_new: int) -> Rows:
        return self.next_victims(columns, rows_over)

    def next_victims(self, columns: Columns, n: int) -> Rows:
        if n <= 0:
            return NONE
        rows = columns.live()
        return rows if n >= len(rows) else rows[_greatest(self.scores(columns, rows), n)]

    def scores(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """The score of each given row: float64 (len(rows),)."""
        age = columns.train_step - columns["insert_step"][rows]
        if self.leaf is None:
            decayed = columns["priority"][rows] * np.exp(-age / self.tau)
            leaf = np.maximum(decayed, LEAF_FLOOR) ** self.exponent
        else:
            leaf = scores_of(self.leaf, columns, rows, role="leaf of SmartEviction,")
            if leaf.min(initial=0.0) < 0:
                raise DataError(f"leaf of SmartEviction gives {leaf.min()}, expected weights of at least 0")
        return np.asarray((age / self.tau) / (leaf + 1e-6) * (1 + np.log1p(columns["uses"][rows]) / 10))


def _greatest(scores: NDArray[np.float64], n: int) -> Rows:
    """Positions of the n greatest, ascending; of equal ones the first. O(len(scores))."""
    bound = np.partition(scores, len(scores) - n)[len(scores) - n]
    above = np.flatnonzero(scores > bound)
    ties = np.flatnonzero(scores == bound)[: n - len(above)]
    return np.sort(np.concatenate([above, ties]))
