"""Positive bias: the newest rollouts, and behind them correct ones only (arXiv 2604.08706, section 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.retention.arrivals import NONE, Rows, first_row_from, living, where_newest_begin
from ostinato.setting_checks import check_finite, check_share

CHUNK = 1024


@dataclass(slots=True)
class PositiveBias:
    """Of a capacity of N keep the F = floor((1 - delta) N) newest, and of the older ones the newest N - F correct.

    Correct is a reward above `threshold`. Too few correct ones leave the buffer smaller than N; delta 0 is first in,
    first out. When bytes run out N is what fits: wrong rollouts behind the newest share leave first, oldest first, then
    the oldest correct ones. Amortized O(1) a rollout: a boundary moves over the rows.
    Raises `ConfigError` unless 0 <= delta <= 1 and the threshold is finite.
    """

    delta: float
    threshold: float
    _right_below: int = field(default=0, init=False, repr=False, compare=False)
    """Every live rollout with a smaller id is correct."""

    def __post_init__(self) -> None:
        self.delta = check_share("delta", self.delta)
        self.threshold = check_finite("threshold", self.threshold)

    def newest_share(self, capacity: int) -> int:
        """floor((1 - delta) capacity), safe against rounding: 1 of 10 at delta = 0.9."""
        return math.floor((1 - self.delta) * capacity + 1e-9)

    def victims(self, columns: Columns, rows_over: int, n_new: int) -> Rows:
        capacity = len(columns) - rows_over
        newest = self.newest_share(capacity)
        older = len(columns) - newest
        if older <= 0:
            return NONE
        wrong = self._wrong(columns, older, older)
        surplus = older - len(wrong) - (capacity - newest)
        return self._with_oldest(columns, wrong, surplus, older)

    def next_victims(self, columns: Columns, n: int) -> Rows:
        if n >= len(columns):
            return columns.live()
        if n <= 0:
            return NONE
        older = len(columns) - self.newest_share(len(columns) - n)
        wrong = self._wrong(columns, older, n)
        return self._with_oldest(columns, wrong, n - len(wrong), older)

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Rewards may have been written: a rollout that turned wrong is looked at again."""
        rows = living(columns, rows)
        ids = columns["rollout_id"][rows[self._is_wrong(columns, rows)]]
        self._right_below = int(ids.min(initial=self._right_below))

    def rebuilt(self, columns: Columns) -> None:
        """Everything may be different: begin at the oldest."""
        self._right_below = 0

    def _is_wrong(self, columns: Columns, rows: Rows | slice) -> NDArray[np.bool_]:
        return np.asarray(~(columns["reward"][rows] > self.threshold))

    def _wrong(self, columns: Columns, older: int, most: int) -> Rows:
        """The oldest `most` wrong rows among the `older` oldest; the scan goes on where nothing was found before."""
        stop = where_newest_begin(columns, len(columns) - older)
        row, found, count = first_row_from(columns, self._right_below), [NONE], 0
        while row < stop and count < most:
            end = min(stop, row + CHUNK)
            part = row + np.flatnonzero(self._is_wrong(columns, slice(row, end)) & columns.alive[row:end])
            found.append(part)
            row, count = end, count + len(part)
        wrong = np.concatenate(found)[:most]
        clean = int(wrong[0]) if len(wrong) else row
        if clean > 0:
            self._right_below = int(columns["rollout_id"][clean - 1]) + 1
        return wrong

    def _with_oldest(self, columns: Columns, wrong: Rows, n: int, older: int) -> Rows:
        """`wrong` and the n oldest others of the `older` oldest, ascending."""
        if n <= 0:
            return wrong
        rows = columns.oldest(min(n + len(wrong), older))
        right = rows[~np.isin(rows, wrong)][:n]
        return np.sort(np.concatenate([wrong, right]))
