"""Moving what is new in the rings into a store, once and in order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ostinato.buffer.workspace import Workspace
from ostinato.errors import DataError
from ostinato.protocols import Store
from ostinato.rollouts import Rollouts
from ostinato.sharing.directory import RingDirectory
from ostinato.sharing.marks import OwnMark
from ostinato.sharing.records import Int, Records
from ostinato.sharing.ring import Ring
from ostinato.sharing.rows import Rows

CHUNK = 512
"""Rollouts handed to the store at once, more only where one add was larger."""


class Drain:
    """Where a reader stands in each ring: `done[slot]` is the first row not yet moved, `lost[slot]` counts overwritten.

    `name`: under which producers are asked to wait, None to ask nobody.
    """

    def __init__(self, directory: RingDirectory, name: str | None) -> None:
        self.done: dict[int, int] = {}
        self.lost: dict[int, int] = {}
        self._turn = 0
        self._memory = Workspace()
        self._directory = directory
        self._mark = OwnMark(directory, name) if name is not None else None

    def begin(self, rings: Mapping[int, Ring]) -> None:
        """Begin at what the rings hold now; of rings that appear later, at their first row."""
        for slot, ring in rings.items():
            self._move_to(slot, ring.bounds()[0])
        if self._mark is not None:
            self._mark.announce(self._directory)

    def move(self, rows: Rows, into: Store, train_step: int, limit: int | None) -> int:
        """Add to the store what the rings hold now and it lets in; returns how many rollouts."""
        heads = rows.bounds()[1]
        moved, turn = 0, self._turn
        self._turn += 1  # now: a ring whose rollouts the store refuses is not first for ever
        for k in range(len(rows.rings)):
            number = (turn + k) % len(rows.rings)
            while limit is None or moved < limit:
                n = self._step(
                    rows, number, int(heads[number]), into, train_step, None if limit is None else limit - moved
                )
                if n is None:
                    break
                moved += n
        return moved

    def pending(self, rows: Rows) -> int:
        """Rollouts that are held and not yet moved."""
        return sum(head - max(tail, self.done.get(ring.settings.slot, 0)) for ring, (tail, head) in _bounds(rows))

    def close(self) -> None:
        """Hold no producer back any more."""
        if self._mark is not None:
            self._mark.close()

    def _step(self, rows: Rows, number: int, head: int, into: Store, train_step: int, limit: int | None) -> int | None:
        """Move one chunk of one ring; None when there is none or the store does not let it in."""
        slot = rows.rings[number].settings.slot
        self._skip_lost(slot, rows.rings[number].bounds()[0])
        first = self.done.get(slot, 0)
        if first >= head:
            return None
        capacity = int(getattr(into, "capacity", 1 << 62))  # a store need not have one
        largest = min(CHUNK, capacity, CHUNK if limit is None else limit)
        with rows.rings[number].copying():
            found = _whole_adds(rows, number, first, head, largest)
            while found is not None and len(found[0]) and not into.can_add(len(found[0])):
                smaller = _first_add(*found)
                if len(smaller[0]) > capacity:
                    raise DataError(f"an add of {len(smaller[0])} rollouts never fits in a store of {capacity}")
                found = smaller if len(smaller[0]) < len(found[0]) else None
            if found is None:
                return None
            row, records = found
            ring = np.full(len(row), number)
            rows.check(ring, row, records, np.zeros(len(row), np.bool_))
            rollouts = rows.joined(ring, ring, records, self._memory) if len(row) else None
            whole = row[~rows.torn(ring, row)]
        if rollouts is None or not len(whole):
            return 0  # overwritten before it was copied: counted next time
        self._skip_lost(slot, int(whole[0]))
        n = _add(into, _newest(rollouts, len(whole)), records["add_first"][-len(whole) :], train_step)
        self._move_to(slot, int(whole[n - 1]) + 1)
        return n

    def _skip_lost(self, slot: int, tail: int) -> None:
        done = self.done.get(slot, 0)
        if tail > done:
            self.lost[slot] = self.lost.get(slot, 0) + tail - done
            self._move_to(slot, tail)

    def _move_to(self, slot: int, row: int) -> None:
        self.done[slot] = row
        if self._mark is not None:
            self._mark.rows[slot] = row


def _bounds(rows: Rows) -> list[tuple[Ring, tuple[int, int]]]:
    return [(ring, ring.bounds()) for ring in rows.rings]


def _newest(rollouts: Rollouts, n: int) -> Rollouts:
    return rollouts if n == len(rollouts) else rollouts.select(np.arange(len(rollouts) - n, len(rollouts)))


def _whole_adds(rows: Rows, number: int, first: int, head: int, largest: int) -> tuple[Int, Records] | None:
    """Row numbers and records from `first` on: adds that are whole, at least one, else at most `largest` rows."""
    stop = min(head, first + largest)
    while True:
        row = np.arange(first, stop)
        ring = np.full(len(row), number)
        records = rows.records(ring, row)
        good = ~rows.torn(ring, row)
        row, records = row[good], records.select(good)
        if not len(row):
            return row, records
        begins, ends = int(records["add_first"][-1]), int(records["add_first"][-1] + records["add_rows"][-1])
        if ends <= stop:
            return row, records
        if begins > row[0]:
            return row[row < begins], records.select(row < begins)
        stop = ends


def _first_add(row: Int, records: Records) -> tuple[Int, Records]:
    own = records["add_first"] == records["add_first"][0]
    return row[own], records.select(own)


def _add(into: Store, rollouts: Rollouts, add_first: Int, train_step: int) -> int:
    """Add them; when the store refuses them together, the first add alone. Returns how many it took."""
    try:
        into.add(rollouts, train_step=train_step)
        return len(rollouts)
    except DataError:
        n = int(np.count_nonzero(add_first == add_first[0]))
        if n == len(rollouts):
            raise
    into.add(rollouts.select(np.arange(n)), train_step=train_step)
    return n
