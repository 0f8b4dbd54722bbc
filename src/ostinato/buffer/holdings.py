"""Capacity and retention at work on the contents of a buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.checks import check_setting, checked_rows
from ostinato.buffer.contents import Contents
from ostinato.buffer.kernels import Apart
from ostinato.buffer.payload import incoming_bytes
from ostinato.buffer.retention import Eviction, OldestFirst, Rule
from ostinato.buffer.statistics import BufferStatistics
from ostinato.errors import DataError
from ostinato.rollouts import Rollouts

Int = NDArray[np.int64]
NONE = np.empty(0, np.int64)


class Holdings:
    """Contents that obey a capacity, rules and an eviction order."""

    def __init__(
        self, contents: Contents, rules: Sequence[Rule], eviction: Eviction, statistics: BufferStatistics
    ) -> None:
        self.contents, self.rules, self.eviction, self.statistics = contents, tuple(rules), eviction, statistics
        self.capacity, self.capacity_bytes = 1, None  # type: tuple[int, int | None]
        self.exchanges = False
        """Whether `exchange` is worth a try."""
        self._looked = (-1, 0)  # train step of the last full look at the rules, rollout id up to which rows were seen

    def set_capacity(self, capacity: int, capacity_bytes: int | None) -> None:
        """Hold this much from the next `make_room` on."""
        capacity = check_setting("capacity", capacity, 1)
        if capacity_bytes is not None:
            capacity_bytes = check_setting("capacity_bytes", capacity_bytes, 1)
        self.capacity, self.capacity_bytes = capacity, capacity_bytes
        simple = not self.rules and capacity_bytes is None and type(self.eviction) is OldestFirst
        self.exchanges = simple and self.contents.exchanges

    def check_size(self, rollouts: Rollouts) -> None:
        """Raise `DataError` when these rollouts would not fit in an empty buffer."""
        if len(rollouts) > self.capacity:
            raise DataError(f"{len(rollouts)} rollouts at once do not fit in a buffer of capacity {self.capacity}")
        if self.capacity_bytes is not None:
            needed = int(self.contents.bytes_for(rollouts).sum())
            if needed > self.capacity_bytes:
                raise DataError(
                    f"{len(rollouts)} rollouts need {needed} bytes and do not fit in a buffer of capacity_bytes "
                    f"{self.capacity_bytes}"
                )

    def exchange(
        self, entering: Rollouts, ids: Int, priority: float, train_step: int, apart: Apart | None = None
    ) -> bool:
        """Take rollouts in and let as many go as is too much, in one step; False: not done, nor for want of a reason.

        `entering` have not been looked at yet; `apart`: where their token rows are, if not there.
        """
        if not self.exchanges:
            return False
        table, leaving = self.contents.table, max(0, len(self.contents) + len(ids) - self.capacity)
        sources = table.sources
        done = self.contents.exchange(entering, ids, priority, train_step, leaving, apart)
        if done is None:
            table.sources = sources
        elif leaving:
            self.statistics.left(done.departed[0], done.departed[1])
        return done is not None

    def enter(self, entering: Rollouts, ids: Int, priority: Any, train_step: int) -> None:
        """The same step by step. What is raised leaves new rows behind, to be withdrawn."""
        contents = self.contents
        kinds = contents.inspect(entering, train_step)
        contents.train_step = train_step
        rows = contents.append(entering, ids, {"priority": priority})
        self.advance(train_step)  # what is expired makes room before anything else does
        self.make_room(entering, rows)
        contents.fill(entering, rows, kinds)

    def make_room(self, entering: Rollouts | None, rows: Int) -> None:
        """Let go of what is too much, with `rows` appended for `entering` and their payload not yet there."""
        contents = self.contents
        over = len(contents) - self.capacity
        self.leave(self._victims(over, len(rows)))
        if self.capacity_bytes is None:
            return
        needed = incoming_bytes(entering) if entering is not None else NONE
        while len(contents):
            waiting = needed[contents.table["alive"][rows]] if len(rows) else NONE
            total = contents.nbytes + int(waiting.sum())
            if total <= self.capacity_bytes:
                return
            self.leave(self._next_victims(total - self.capacity_bytes, total / len(contents)))

    def _victims(self, over: int, n_new: int) -> Int:
        """Who leaves for want of rows. Raises `DataError` when the order of eviction names too few."""
        rows = self.eviction.victims(self.contents.columns, over, n_new)
        if type(self.eviction) is OldestFirst:
            return rows
        rows = checked_rows(self.contents.table, rows, f"{type(self.eviction).__name__}.victims")
        if len(rows) < over:
            raise DataError(f"{type(self.eviction).__name__}.victims gave {len(rows)} rows, expected {over} or more")
        return rows

    def _next_victims(self, over: int, mean: float) -> Int:
        """As many of those who leave next as are certainly not too many: one, or all that fit in the bytes to free."""
        rows = self._next(max(1, min(int(over / mean), len(self.contents))))
        while len(rows) > 1 and (freed := int(self.contents.bytes_of(rows).sum())) > over:
            rows = self._next(max(1, len(rows) * over // (2 * freed)))
        return rows

    def _next(self, n: int) -> Int:
        """The n rows that leave next. Raises `DataError` when the order of eviction names more, fewer or no such."""
        name = f"{type(self.eviction).__name__}.next_victims"
        rows = checked_rows(self.contents.table, self.eviction.next_victims(self.contents.columns, n), name)
        if len(rows) != n:
            raise DataError(f"{name} gave {len(rows)} rows, expected {n}")
        return rows

    def leave(self, rows: Int) -> None:
        """Remove live rows and remember how often they were used; done before what an index raises gets out."""
        if len(rows):
            departed = self.contents.drop(rows)
            self.statistics.left(departed.uses, departed.lengths)
            self.contents.dropped(rows)

    def write(self, ids: Int, columns: Mapping[str, NDArray[Any]]) -> int:
        """Set columns of the rollouts that are still there; returns how many, the others are counted."""
        rows = self.contents.table.rows_of(ids)
        there = rows >= 0
        self.statistics.stale(int(np.count_nonzero(~there)))
        if there.any():
            self.contents.write(rows[there], {name: values[there] for name, values in columns.items()})
        return int(np.count_nonzero(there))

    def advance(self, train_step: int, used: Int = NONE) -> None:
        """Apply the rules at this train step, a checked one; `used`: rows just drawn. What leaves stays gone."""
        contents = self.contents
        contents.train_step = train_step
        if not self.rules:
            return
        step, seen = self._looked
        newest = contents.table["rollout_id"]
        touched = None
        if train_step == step:
            added = contents.table.first + np.searchsorted(newest[contents.table.first :], seen)
            touched = np.concatenate([np.arange(added, contents.table.span), np.unique(used)])
        for rule in self.rules:
            if touched is not None:
                touched = touched[contents.table["alive"][touched]]
                if not len(touched):
                    break
            name = type(rule).__name__
            rows = checked_rows(contents.table, rule.expired(contents.columns, touched), f"{name}.expired")
            if len(rows):
                self.statistics.expired(name, len(rows))
                self.leave(rows)
        self._looked = train_step, int(newest[-1]) + 1 if len(newest) else seen

    def check(self) -> None:
        """Raise `DataError` when an invariant is broken."""
        contents, table = self.contents, self.contents.table
        if len(contents) > self.capacity:
            raise DataError(f"holds {len(contents)} rollouts, capacity is {self.capacity}")
        if self.capacity_bytes is not None and contents.nbytes > self.capacity_bytes:
            raise DataError(f"holds {contents.nbytes} bytes, capacity_bytes is {self.capacity_bytes}")
        if len(contents) != np.count_nonzero(table["alive"][table.first :]):
            raise DataError(f"holds {len(contents)} rollouts, others are marked as held")
        if np.any(np.diff(table["rollout_id"][table.live()]) <= 0):
            raise DataError("rollout ids do not rise")

    def look_again(self) -> None:
        """Have the rules look at every row next time."""
        self._looked = -1, 0
