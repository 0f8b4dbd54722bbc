"""Copying rows out of several rings at once, and knowing which copies are whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.kernels import Blocks, Kernels
from ostinato.buffer.workspace import Workspace
from ostinato.errors import DataError
from ostinato.ragged import Extra, Ragged, offsets_of
from ostinato.rollouts import TOKEN_COLUMNS, Rollouts
from ostinato.sharing.layout import ALIGNMENT, Layout, PayloadColumn
from ostinato.sharing.locks import fence
from ostinato.sharing.records import Int, Records
from ostinato.sharing.ring import SOURCE_BYTES, TAIL, Ring


class Rows:
    """The rings that hold something, numbered; a row is a ring number and a row number.

    A copy is whole when, after it was made, the ring's tail has not passed its row. `DataError` when a record that is
    whole makes no sense, or rings have different extra columns.
    """

    def __init__(self, rings: Sequence[Ring], kernels: Kernels) -> None:
        self.rings = [ring for ring in rings if ring.attach()]
        layouts = [ring.layout for ring in self.rings if ring.layout is not None]
        for ring, layout in zip(self.rings, layouts, strict=True):
            if layout.extras != layouts[0].extras:
                raise DataError(f"{ring.path} holds the extra columns {layout.extras}, others {layouts[0].extras}")
        self._kernels = kernels
        self._layout = layouts[0] if layouts else None
        self.slots = np.array([ring.settings.slot for ring in self.rings], np.int64)
        self._capacity = np.array([ring.settings.capacity for ring in self.rings], np.int64)
        self._limits = np.array([len(ring.payload) for ring in self.rings], np.int64)
        self._least_limit = int(self._limits.min(initial=1 << 62))
        self._target, self._blocks = Blocks(1), Blocks(1)
        for number, ring in enumerate(self.rings):
            self._blocks.put(number, ring.payload)
        self._kept = np.empty(0, np.uint8)  # the last block: copies of rows that might be overwritten soon
        self._blocks.put(len(self.rings), self._kept)
        self._names, self._names_read = np.empty(0, np.str_), 0
        self._first_name = np.zeros(len(self.rings) + 1, np.int64)

    @property
    def layout(self) -> Layout:
        """That of all rings. Raises `DataError` when no ring holds anything."""
        if self._layout is None:
            raise DataError("no producer has added anything yet")
        return self._layout

    def copying(self) -> AbstractContextManager[object]:
        """Around reading and checking; takes the locks of the rings that have one."""
        locked = [ring for ring in self.rings if ring.lock is not None]
        if not locked:
            return nullcontext()
        with ExitStack() as stack:
            for ring in locked:
                stack.enter_context(ring.copying())
            return stack.pop_all()

    def bounds(self) -> tuple[Int, Int]:
        """Tails and heads of all rings now."""
        pairs = np.array([ring.bounds() for ring in self.rings], np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def held(self) -> int:
        """Rows held by all rings now."""
        return sum([head - tail for tail, head in (ring.bounds() for ring in self.rings)])

    def torn(self, ring: Int, row: Int) -> NDArray[np.bool_]:
        """Which rows may have been overwritten since before this call."""
        fence()
        if len(self.rings) == 1:
            return np.asarray(row < self.rings[0].counters[TAIL])
        tails = np.array([each.counters[TAIL] for each in self.rings], np.int64)
        return np.asarray(row < tails[ring])

    def records(self, ring: Int, row: Int) -> Records:
        """A copy of each row's record; meaningless where torn."""
        layout = self.layout
        if len(self.rings) == 1:
            alone = self.rings[0]
            return Records(layout, alone.records.take(row % alone.settings.capacity, axis=0))
        places = row % self._capacity[ring]
        found = np.empty((len(row), layout.record.itemsize), np.uint8)
        for number, each in enumerate(self.rings):
            own = ring == number
            found[own] = each.records.take(places[own], axis=0)
        return Records(layout, found)

    def check(self, ring: Int, row: Int, records: Records, torn: NDArray[np.bool_]) -> None:
        """Raise `DataError` unless the records that are whole are of these rows and point into their ring."""
        ends = records.starts + records.sizes
        least = ends | records.starts | records.counts | records.sizes  # negative when one of them is
        own, behind = records["row"] == row, records.counts[0] - records["prompt_length"]
        wrong = np.count_nonzero((least | (self._least_limit - ends)) < 0) + np.count_nonzero(behind < 0)
        if not wrong and np.count_nonzero(own) == len(row):
            return  # the short way, for rings of one size
        fits = own & (behind >= 0) & (least >= 0).all(axis=0) & (ends <= self._limits[ring]).all(axis=0) | torn
        if not fits.all():
            bad = int(np.flatnonzero(~fits)[0])
            raise DataError(f"{self.rings[int(ring[bad])].path} is damaged: the record of row {int(row[bad])}")

    def keep(self, ring: Int, records: Records, used: int) -> int:
        """Copy the payload of these rows behind the `used` bytes kept; the records then point to the copies."""
        sizes = records.sizes.ravel()
        places = offsets_of(sizes) + used
        needed = int(places[-1])
        if needed > len(self._kept):
            grown = np.empty(max(needed, 2 * len(self._kept)), np.uint8)
            grown[:used] = self._kept[:used]
            self._kept = grown
            self._blocks.put(len(self.rings), grown)
        of = np.concatenate([ring] * len(self.layout.columns))
        to = np.full(len(of), len(self.rings))
        self._kernels.copy(self._blocks, to, places[:-1], self._blocks, of, records.starts.ravel(), sizes)
        records.starts[...] = places[:-1].reshape(records.starts.shape)
        return needed

    def joined(self, ring: Int, block: Int, records: Records, out: Workspace) -> Rollouts:
        """The rows as packed rollouts, copied to `out`; `block`: the ring, or `len(rings)` where `keep` copied."""
        columns = self.layout.columns
        values = self._payload(block, records, out)
        extras: dict[str, Extra] = {
            column.name: Ragged(values[k], offsets_of(records.counts[k])) if column.ragged else values[k]
            for k, column in enumerate(columns)
            if k >= len(TOKEN_COLUMNS)
        }
        return Rollouts.trusted(
            offsets=offsets_of(records.counts[0]),
            **dict(zip(TOKEN_COLUMNS, values, strict=False)),
            **records.columns(),
            source=self._source(ring, records["source_code"]),
            extras=extras,
        )

    def _payload(self, block: Int, records: Records, out: Workspace) -> list[NDArray[Any]]:
        """Values of every payload column, in one piece of memory and by one call of the kernel."""
        sizes = records.sizes
        ends = sizes.cumsum(axis=1)
        places, totals, begins = ends - sizes, ends[:, -1].tolist() if len(records) else [0] * len(sizes), [0]
        for total in totals:
            begins.append(begins[-1] - (-total // ALIGNMENT) * ALIGNMENT)
        places += np.array(begins[:-1])[:, None]
        memory = out.array("payload", (begins[-1],), np.uint8)
        self._target.put(0, memory)
        to, of = np.zeros(places.size, np.int64), np.concatenate([block] * len(sizes))
        self._kernels.copy(self._target, to, places.ravel(), self._blocks, of, records.starts.ravel(), sizes.ravel())
        pieces = zip(self.layout.columns, begins, totals, strict=False)
        return [
            _texts(memory[begin : begin + total], column, records.widths[k], sizes[k])
            if column.text
            else _shaped(memory[begin : begin + total].view(column.dtype), column.shape)
            for k, (column, begin, total) in enumerate(pieces)
        ]

    def _source(self, ring: Int, codes: Int) -> NDArray[np.str_]:
        known = sum([int(each.counters[SOURCE_BYTES]) for each in self.rings])
        if known != self._names_read:
            names = [list(each.sources()) for each in self.rings]
            self._names = np.array([name for own in names for name in own], np.str_)
            self._first_name = offsets_of([len(own) for own in names])
            self._names_read = known
        at, ends = codes, self._first_name[1]
        if len(self.rings) > 1:
            at, ends = codes + self._first_name[ring], self._first_name[ring + 1]
        if np.count_nonzero((codes < 0) | (at >= ends)):
            raise DataError("a ring is damaged: a record names a source that its header lacks")
        return self._names.take(at)


def _shaped(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return values.reshape(-1, *shape) if shape else values


def _texts(packed: NDArray[np.uint8], column: PayloadColumn, widths: Int, sizes: Int) -> NDArray[Any]:
    """Strings whose width may differ from row to row, as an array as wide as the widest."""
    kind = column.dtype.type
    one = np.dtype((kind, 1)).itemsize
    wide = np.dtype((kind, int(widths.max(initial=one)) // one))
    ends = np.cumsum(sizes)
    cells = [
        packed[a:b].view(np.dtype((kind, w // one))).astype(wide)
        for a, b, w in zip((ends - sizes).tolist(), ends.tolist(), widths.tolist(), strict=True)
    ]
    texts: NDArray[Any] = np.concatenate([np.empty(0, wide), *cells]).reshape(-1, *column.shape)
    return texts
