"""What operations do to a buffer, seen and done again row by row.

A record says what happened (which rows came, which were drawn, which left), not how it was decided: replaying it needs
neither the sampler nor the rules nor a random generator, and gives the same buffer under another version of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.sampling.protocol import Remembering
from ostinato.buffer.state import BOOK_TYPES, _parts
from ostinato.rollouts import Rollouts, extra_layouts

Int = NDArray[np.int64]

PENDING = "departed"
"""Departures nobody has asked for yet grow without bound; replaying makes them anew."""


class Effects:
    """Reads off a `ReplayBuffer` what the last operation did, and does to one what a record says."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self._left: list[Int] = []
        self._parts = [(f"part.{label}.", part) for label, part in _parts(buffer) if isinstance(part, Remembering)]
        buffer._contents._indexes += (self,)

    def detach(self) -> None:
        """Hear no more of the buffer."""
        contents = self.buffer._contents
        contents._indexes = tuple(index for index in contents._indexes if index is not self)

    def rebuilt(self, columns: Columns) -> None:
        """Row numbers changed: ids did not."""

    def changed(self, columns: Columns, rows: Int) -> None:
        """Remember the ids of rows that left."""
        gone = rows[~columns.alive[rows]]
        if len(gone):
            self._left.append(columns["rollout_id"][gone])

    def left(self) -> Int:
        """Ids of the rollouts that left since the last call, in the order in which they did."""
        gone: Int = np.concatenate([np.empty(0, np.int64), *self._left])
        self._left = []
        return gone

    def small(self) -> dict[str, NDArray[Any]]:
        """The state that is not rows: counters, clock, statistics, what sampler and retention remember."""
        buffer = self.buffer
        counters = (buffer.added, buffer._inserted, buffer._sampled, buffer.train_step)
        arrays: dict[str, NDArray[Any]] = {"counters": np.array(counters, np.int64)}
        arrays["sources"] = np.array(buffer._contents.table.sources, np.str_)
        counted = buffer.statistics.state_arrays()
        arrays |= {f"statistics.{name}": array for name, array in counted.items() if name != PENDING}
        for prefix, part in self._parts:
            arrays |= {prefix + name: array for name, array in part.state_arrays().items()}
        return arrays

    def book(self, rollout_ids: Int) -> tuple[NDArray[np.bool_], dict[str, NDArray[Any]]]:
        """Which of these are held, bool (n,), and the book-keeping columns of those."""
        table = self.buffer._contents.table
        rows = table.rows_of(rollout_ids)
        return rows >= 0, {name: table[name][rows[rows >= 0]] for name in BOOK_TYPES}

    def append(
        self, rollouts: Rollouts, book: Mapping[str, NDArray[Any]], sources: NDArray[np.str_], train_step: int
    ) -> None:
        """Put rows with this book-keeping behind the newest; `sources`: the data sets known then, in their order."""
        contents = self.buffer._contents
        contents.train_step = train_step
        if not len(contents) and extra_layouts(rollouts) != contents.payload.layouts:
            contents.empty(rollouts)
        contents.table.sources = tuple(sources.tolist())
        if len(rollouts):
            kinds = contents.kernels.inspect(rollouts)
            contents.fill(rollouts, contents.append(rollouts, book["rollout_id"], book), kinds)

    def leave(self, rollout_ids: Int) -> None:
        """Remove these rows; those that are not there came and left in one operation, unused."""
        rows = self.buffer._contents.table.rows_of(rollout_ids)
        there = rows >= 0
        self.buffer._holdings.leave(rows[there])
        if not there.all():
            unused = np.zeros(np.count_nonzero(~there), np.int64)
            self.buffer.statistics.left(unused, unused)
        self.buffer._contents.settle()

    def use(self, rollout_ids: Int, train_step: int) -> None:
        """Count a draw of these rows, those that are there."""
        contents = self.buffer._contents
        contents.train_step = train_step
        rows = contents.table.rows_of(rollout_ids)
        contents.draw(rows[rows >= 0], self.buffer.statistics.correct_above)

    def settle(self, small: Mapping[str, NDArray[Any]]) -> None:
        """Take over the newest `small` state, with all rows in place."""
        buffer = self.buffer
        buffer._added, buffer._inserted, buffer._sampled, buffer._contents.train_step = small["counters"].tolist()
        own = {name.removeprefix("statistics."): array for name, array in small.items()}
        pending = buffer.statistics.state_arrays()[PENDING]
        buffer.statistics.load_state_arrays(own | {PENDING: pending})
        for prefix, part in self._parts:
            own = {name.removeprefix(prefix): array for name, array in small.items() if name.startswith(prefix)}
            if own:
                part.load_state_arrays(own)
        buffer._contents.compact()  # what keeps an index matches its state with the rows
        buffer._holdings.look_again()
