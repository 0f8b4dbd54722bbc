"""Capacity and retention at work on the contents of a buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.contents import Contents
from ostinato.buffer.payload import incoming_bytes
from ostinato.buffer.retention import Eviction, Rule
from ostinato.buffer.settings import check_whole
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
        self._looked = (-1, 0)  # train step of the last full look at the rules, rollout id up to which rows were seen

    def set_capacity(self, capacity: int, capacity_bytes: int | None) -> None:
        """Hold this much from the next `make_room` on."""
        check_whole("capacity", capacity, least=1)
        if capacity_bytes is not None:
            check_whole("capacity_bytes", capacity_bytes, least=1)
        self.capacity, self.capacity_bytes = capacity, capacity_bytes

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

    def make_room(self, entering: Rollouts | None, rows: Int) -> None:
        """Let go of what is too much, with `rows` appended for `entering` and their payload not yet there."""
        contents, columns = self.contents, self.contents.columns
        self.leave(self.eviction.victims(columns, len(contents) - self.capacity, len(rows)))
        if self.capacity_bytes is None:
            return
        needed = incoming_bytes(entering) if entering is not None else NONE
        while len(contents):
            waiting = needed[contents.table["alive"][rows]] if len(rows) else NONE
            total = contents.nbytes + int(waiting.sum())
            if total <= self.capacity_bytes:
                return
            self.leave(self._next_victims(total - self.capacity_bytes, total / len(contents)))

    def _next_victims(self, over: int, mean: float) -> Int:
        """As many of those who leave next as are certainly not too many: one, or all that fit in the bytes to free."""
        columns = self.contents.columns
        count = max(1, min(int(over / mean), len(columns)))
        rows = self.eviction.next_victims(columns, count)
        while len(rows) > 1 and (freed := int(self.contents.bytes_of(rows).sum())) > over:
            rows = self.eviction.next_victims(columns, max(1, len(rows) * over // (2 * freed)))
        return rows

    def leave(self, rows: Int) -> None:
        """Remove live rows and remember how often they were used."""
        if len(rows):
            departed = self.contents.drop(rows)
            self.statistics.left(departed.uses, departed.lengths)

    def write(self, ids: Int, columns: Mapping[str, NDArray[Any]]) -> int:
        """Set columns of the rollouts that are still there; returns how many, the others are counted."""
        rows = self.contents.table.rows_of(ids)
        there = rows >= 0
        self.statistics.stale(int(np.count_nonzero(~there)))
        if there.any():
            self.contents.write(rows[there], {name: values[there] for name, values in columns.items()})
        return int(np.count_nonzero(there))

    def advance(self, train_step: int, used: Int = NONE) -> None:
        """Apply the rules at this train step; `used`: rows just drawn. Raises `DataError` for a step that falls."""
        self.check_step(train_step)
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
            self.leave(rule.expired(contents.columns, touched))
        self._looked = train_step, int(newest[-1]) + 1 if len(newest) else seen

    def check_step(self, train_step: int) -> None:
        """Raise `DataError` for a train step before the latest one."""
        if not isinstance(train_step, (int, np.integer)):
            raise DataError(f"train step is {train_step!r}, expected a whole number")
        now = self.contents.train_step
        if train_step < now:
            raise DataError(f"train step {train_step} comes after train step {now}: steps must not fall")

    def look_again(self) -> None:
        """Have the rules look at every row next time."""
        self._looked = -1, 0
