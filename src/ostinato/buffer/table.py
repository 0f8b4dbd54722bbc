"""The rows of a buffer, oldest first: named scalar columns over one sliding window.

Appending is amortized O(1) a row and so is removing one anywhere: it leaves a dead row, and the table is compacted when
a quarter of it is dead or the window has reached the end. Columns of one dtype share one block, so that a batch is
gathered in one pass a dtype.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from operator import setitem
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.repeats import all_the_same

BLOCKS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "ages": (np.int64, ("rollout_id", "policy_version_min", "birth_step", "insert_step")),
    "integers": (np.int64, ("prompt_id", "group_id", "policy_version_max", "uses", "last_use_step")),
    "numbers": (np.float64, ("reward", "group_reward_mean", "group_reward_std", "advantage", "priority")),
    "counts": (np.int32, ("prompt_length", "top_k", "source_code", "length", "group_rows")),
    "settings": (np.float32, ("temperature", "top_p")),
    "flags": (np.bool_, ("truncated", "alive")),
}
"""Block by block, the dtype and the columns a sampler may look at."""

SCANNED = ("ages", "flags")
"""Blocks whose columns lie in one piece each, since all rows are looked at often. In the others a row does: drawing it
then costs one miss of the cache a block, not one a column."""

SLACK = 1.25
"""Rows of memory a live row: the price of a window that slides and of dead rows."""

LEAST_ROWS = 16


class Table:
    """Columns of equal length whose rows stay in insertion order.

    `handles`: further int64 columns, -1 in new rows, that say where the payload lies. `sources`: names by their code.
    `n`: rows it will hold at first.

    A row is a position from 0 to `span` - 1; positions change when `compact` runs, never else.
    """

    def __init__(self, handles: tuple[str, ...] = (), sources: tuple[str, ...] = (), n: int = 0) -> None:
        self.sources = sources
        self._names: dict[str, tuple[str, int]] = {}
        self.blocks: dict[str, NDArray[Any]] = {}
        self.handle_names = handles
        layout = {**BLOCKS, "integers": (np.int64, (*BLOCKS["integers"][1], *handles))}
        for block, (dtype, names) in layout.items():
            self.blocks[block] = np.zeros((len(names), memory_for(n)), dtype, order="C" if block in SCANNED else "F")
            self._names |= {name: (block, index) for index, name in enumerate(names)}
        self._start = self._stop = self._dead = 0  # _dead: holes between the two
        self._live: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._stop - self._start - self._dead

    @property
    def span(self) -> int:
        """Rows in use, dead ones included."""
        return self._stop

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(block.shape[0] * block.itemsize for block in self.blocks.values())

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken."""
        return sum(block.nbytes for block in self.blocks.values())

    def names(self) -> list[str]:
        """All columns."""
        return list(self._names)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column, (span,), writable. Raises `KeyError` for other names."""
        if name not in self._names:
            raise KeyError(f"no column {name!r}; there are {sorted(self._names)}")
        block, index = self._names[name]
        return self.blocks[block][index, : self._stop]

    def gather(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """All columns of the given rows, a copy."""
        taken = {
            name: block.take(rows, axis=1) if name in SCANNED else np.ascontiguousarray(block.T.take(rows, axis=0).T)
            for name, block in self.blocks.items()
        }
        return self.named(taken)

    def named(self, blocks: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Columns by name, out of blocks of the layout of this table."""
        return dict(zip(self._names, chain.from_iterable(blocks.values()), strict=True))

    def place(self, name: str) -> int:
        """Where a column stands in its block."""
        return self._names[name][1]

    def code_of(self, sources: NDArray[np.str_]) -> NDArray[np.int32] | int:
        """Codes of source names, one number when all are the same; new names are added."""
        if len(sources) and all_the_same(sources):
            return self.code_of_name(str(sources[0]))
        names, codes = np.unique(sources, return_inverse=True)
        self.sources += tuple(name for name in names.tolist() if name not in self.sources)
        return np.array([self.sources.index(name) for name in names.tolist()], np.int32)[codes.reshape(-1)]

    def code_of_name(self, source: str) -> int:
        """The code of one source name; a new one is added."""
        if source not in self.sources:
            self.sources += (source,)
        return self.sources.index(source)

    def append(self, n: int) -> int:
        """Add n live rows behind the newest, to be written to; returns the first. For the room see `needs_room`."""
        start = self._stop
        self._stop += n
        self._live = None
        return start

    def needs_room(self, n: int) -> bool:
        """Whether n more rows do not fit behind the newest before `compact`."""
        return self._stop + n > int(self.blocks["integers"].shape[1])

    def is_worn(self) -> bool:
        """Whether enough rows are dead for `compact` to pay."""
        return self._dead > LEAST_ROWS and 4 * self._dead > self._stop - self._start

    def count_dead(self, n: int, first: int) -> None:
        """Note that n rows were marked dead, and which is the first live one now, `span`: none."""
        self._dead += n - (first - self._start)
        self._start = first
        self._live = None

    def cut(self, span: int) -> None:
        """Forget the rows from this one on, all of them new."""
        self._stop, self._live = span, None

    def recount(self) -> None:
        """Find out again how many rows are dead, after an interrupt."""
        self._dead = self._stop - self._start - int(np.count_nonzero(self["alive"][self._start :]))
        self._live = None

    def compact(self, room: int = 0, *, exact: bool = False) -> None:
        """Move the live rows to the front and leave room for `room` more; rows change.

        `exact`: in as much memory as a new table for them takes; otherwise it may stay as it is.
        """
        live, n = self.live(), len(self)
        size = self.blocks["integers"].shape[1]
        wanted = memory_for(n + room)
        blocks = self.blocks
        if wanted > size or 2 * wanted < size or (exact and wanted != size):
            blocks = {
                name: np.zeros((len(block), wanted), block.dtype, order="C" if name in SCANNED else "F")
                for name, block in blocks.items()
            }
        to, of = [piece[:n] for piece in _pieces(blocks)], _pieces(self.blocks)
        put: Any = setitem
        moves: Iterator[Any] = map(put, to, repeat(slice(None)), [piece[self._start : self._stop] for piece in of])
        if self._dead:
            take: Any = np.ndarray.take
            moves = map(take, of, repeat(live), repeat(0), to, repeat("clip"))
        try:
            deque(moves, maxlen=0)  # one call: an interrupt comes before it or behind it, never in between
        finally:
            self.blocks = blocks
            self._start, self._stop, self._dead, self._live = 0, n, 0, None

    def oldest(self, n: int) -> NDArray[np.int64]:
        """The n oldest live rows, ascending; all of them when there are fewer. Looks a little past them."""
        if not self._dead:
            return np.arange(self._start, self._start + min(max(n, 0), len(self)))
        alive, width = self["alive"], 2 * n + 64
        while True:
            rows = self._start + np.flatnonzero(alive[self._start : self._start + width])[: max(n, 0)]
            if len(rows) >= n or self._start + width >= self._stop:
                return rows
            width *= 4

    @property
    def first(self) -> int:
        """The oldest live row."""
        return self._start

    def live(self) -> NDArray[np.int64]:
        """Rows of the live rollouts, ascending."""
        if self._live is None:
            if self._dead:
                self._live = self._start + np.flatnonzero(self["alive"][self._start :])
            else:
                self._live = np.arange(self._start, self._stop)
            self._live.flags.writeable = False  # samplers look at it too
        return self._live

    def select(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the live rollouts of these ranks, 0 the oldest."""
        return self.live()[ranks] if self._dead else ranks + self._start

    def rows_of(self, rollout_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each id, -1 where the rollout is gone."""
        held = self["rollout_id"][self._start :]
        n = len(held)
        if not n:
            return np.full(len(rollout_ids), -1)
        # Where most rows left in the order they came, ids rise evenly, and a search would miss the cache at every step.
        step = max((int(held[-1]) - int(held[0])) // max(n - 1, 1), 1)
        at = ((rollout_ids - held[0]) // step).clip(0, n - 1)
        found = held[at] == rollout_ids
        if not found.all():
            missed = np.flatnonzero(~found)
            at[missed] = np.minimum(np.searchsorted(held, rollout_ids[missed]), n - 1)
            found[missed] = held[at[missed]] == rollout_ids[missed]
        if self._dead:
            found &= self["alive"][self._start :][at]
        return np.where(found, at + self._start, -1)


def _pieces(blocks: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What lies in one piece, rows first: columns, or blocks whose rows do."""
    return [p for name, block in blocks.items() for p in (block if name in SCANNED else (block.T,))]


def memory_for(rows: int) -> int:
    """Rows of memory that a table of so many rows takes."""
    return max(LEAST_ROWS, int(SLACK * rows))
