"""Writing into a ring: a few memcpys a group, and the order of stores that lets others read without a lock."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.rollouts import Rollouts, extra_layouts
from ostinato.sharing.directory import reserve
from ostinato.sharing.layout import ALIGNMENT, RECORD_COLUMNS, Layout
from ostinato.sharing.locks import fence
from ostinato.sharing.ring import CLOSED, HEAD, HEADER_BYTES, NEXT_BYTE, PID, STARTS, TAIL, WRITTEN_NS, Ring

Pieces = list[tuple[NDArray[Any], NDArray[np.int64]]]


class RingWriter:
    """The one writer of a ring. It may go on where a writer that died stopped: rows that were whole stay whole."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._codes: dict[str, int] = {name: code for code, name in enumerate(ring.sources())}
        counters = ring.counters
        self._tail, self._head = ring.bounds()
        self._next = int(counters[NEXT_BYTE])
        self._adds: deque[tuple[int, int]] = deque()  # of each add held: row behind its last, where its bytes begin
        self._kept: _KeptRecords | None = None
        if ring.attach():
            self._find_adds()
        counters[PID], counters[CLOSED] = os.getpid(), 0
        counters[STARTS] += 1

    @property
    def head(self) -> int:
        """Rows ever finished."""
        return self._head

    def append(self, rollouts: Rollouts, train_step: int, wait: Callable[[int], None]) -> int:
        """Copy the rollouts in as one; returns the row of the first.

        `wait(tail)` is called before rows below `tail` are given up. Raises `DataError`, and then changes nothing, when
        they are more than the ring can hold at all, or their extra columns differ from those it was made for.
        """
        layout, first, ring = self._layout(rollouts), self._head, self._ring
        pieces = layout.pieces(rollouts)
        begins, size = _placed(pieces)
        self._check_size(len(rollouts), size)
        start, tail = self._room(len(rollouts), size)
        wait(tail)
        if ring.layout is None:
            self._begin(layout)
        places = [start % ring.settings.capacity_bytes + begin for begin in begins]
        about = {"source_code": self._source_codes(rollouts), "insert_step": train_step, "add_byte": start}
        records = self._records(layout, rollouts, pieces, places, about)
        with ring.copying():
            self._forget(tail)
            ring.counters[TAIL] = tail
            fence()
            self._copy(pieces, places)
            self._put_records(records)
            fence()
            self._adds.append((first + len(rollouts), start))  # before head, should an interrupt come in between
            self._next = ring.counters[NEXT_BYTE] = start + size
            self._head = ring.counters[HEAD] = first + len(rollouts)
        ring.counters[WRITTEN_NS] = time.monotonic_ns()
        return first

    def _layout(self, rollouts: Rollouts) -> Layout:
        held = self._ring.layout
        if held is None:
            return Layout.of(rollouts)
        if (given := extra_layouts(rollouts)) != held.extras:
            raise DataError(f"extra columns {given} differ from those of the ring, {held.extras}")
        return held

    def _begin(self, layout: Layout) -> None:
        settings = self._ring.settings
        size = HEADER_BYTES + settings.capacity_bytes + settings.capacity * layout.record.itemsize
        reserve(self._ring.path, size)
        self._ring.publish_layout(layout)
        self._ring.attach()

    def _check_size(self, n: int, size: int) -> None:
        settings = self._ring.settings
        if n > settings.capacity or size > settings.capacity_bytes:
            raise DataError(
                f"{n} rollouts of {size} bytes do not fit in a ring of "
                f"{settings.capacity} rollouts and {settings.capacity_bytes} bytes"
            )

    def _source_codes(self, rollouts: Rollouts) -> list[int] | int:
        """One number when all are the same."""
        names = rollouts.source.tolist()
        various = dict.fromkeys(names)
        new = [name for name in various if name not in self._codes]
        if new:
            self._ring.check_sources(new)
            for name in new:
                self._ring.add_source(name)
                self._codes[name] = len(self._codes)
        return self._codes[names[0]] if len(various) == 1 else [self._codes[name] for name in names]

    def _room(self, n: int, size: int) -> tuple[int, int]:
        """Where the bytes begin (counted from the first ever written), and the tail that makes room."""
        capacity = self._ring.settings.capacity_bytes
        start = self._next
        if size > capacity - start % capacity:
            start += capacity - start % capacity
        tail = max(self._tail, self._head + n - self._ring.settings.capacity)
        for behind, begins in self._adds:
            if begins >= start + size - capacity:
                break
            tail = max(tail, behind)
        return start, tail

    def _forget(self, tail: int) -> None:
        self._tail = tail
        while self._adds and self._adds[0][0] <= tail:
            self._adds.popleft()

    def _records(
        self, layout: Layout, rollouts: Rollouts, pieces: Pieces, places: list[int], about: dict[str, Any]
    ) -> NDArray[np.uint8]:
        """The records as bytes, (n, record size): valid until the next add."""
        n = len(rollouts)
        if self._kept is None or self._kept.layout is not layout or len(self._kept.raw) != n:
            self._kept = _KeptRecords(layout, n)
        values = about | {"row": np.arange(self._head, self._head + n), "add_first": self._head, "add_rows": n}
        for k, (column, (array, offsets)) in enumerate(zip(layout.columns, pieces, strict=True)):
            width = array.dtype.itemsize
            item = width * column.cells
            values[f"start_{k}"] = places[k] + item * offsets[:-1]
            values[f"count_{k}"] = offsets[1:] - offsets[:-1]
            values[f"width_{k}"] = width
        fields = self._kept.fields
        for name in RECORD_COLUMNS:
            fields[name][...] = getattr(rollouts, name)
        for name, value in values.items():
            fields[name][...] = value
        return self._kept.raw

    def _copy(self, pieces: Pieces, places: list[int]) -> None:
        payload = self._ring.payload
        for (values, _), place in zip(pieces, places, strict=True):
            target = payload[place : place + values.nbytes].view(values.dtype).reshape(values.shape)
            target[...] = values

    def _put_records(self, records: NDArray[np.uint8]) -> None:
        capacity = self._ring.settings.capacity
        at = self._head % capacity
        before_end = min(len(records), capacity - at)
        self._ring.records[at : at + before_end] = records[:before_end]
        self._ring.records[: len(records) - before_end] = records[before_end:]

    def _find_adds(self) -> None:
        assert self._ring.layout is not None
        rows = np.arange(self._tail, self._head)
        records = self._ring.records[rows % self._ring.settings.capacity].view(self._ring.layout.record)[:, 0]
        if not np.array_equal(records["row"], rows):
            raise DataError(f"{self._ring.path} is damaged: its records do not have their row numbers")
        last = np.flatnonzero(np.diff(records["add_first"], append=-1))
        self._adds.extend(zip((rows[last] + 1).tolist(), records["add_byte"][last].tolist(), strict=True))


class _KeptRecords:
    """Memory for n records, and its fields by name: groups of one size are written to it one after the other."""

    def __init__(self, layout: Layout, n: int) -> None:
        self.layout = layout
        records = np.zeros(n, layout.record)
        self.raw: NDArray[np.uint8] = records.view(np.uint8).reshape(n, layout.record.itemsize)
        self.fields: dict[str, NDArray[Any]] = {name: records[name] for name in layout.record.names or ()}


def _placed(pieces: Pieces) -> tuple[list[int], int]:
    """Where each piece begins, in bytes behind the first, and the bytes of all."""
    begins = [0, *accumulate(-(-values.nbytes // ALIGNMENT) * ALIGNMENT for values, _ in pieces)]
    return begins[:-1], begins[-1]
