"""A set of rows that can be drawn from by rank, and the columns of a buffer seen through it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows
from ostinato.buffer.sumtree import SumTree


class RowSet:
    """Rows with a property: membership changes and the k-th member cost O(log rows)."""

    def __init__(self) -> None:
        self.rebuilt(np.empty(0, np.bool_))

    def __len__(self) -> int:
        return self._tree.positive

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Membership of every row, (span,); read only."""
        view = self._mask[: len(self._tree)]
        view.flags.writeable = False
        return view

    def rebuilt(self, mask: NDArray[np.bool_]) -> None:
        """Take the membership of all rows, (span,)."""
        self._mask = mask.copy()
        self._tree = SumTree()
        self._tree.reset(mask.astype(np.float64))

    def assign(self, span: int, rows: Rows, member: NDArray[np.bool_]) -> None:
        """Set the membership of these rows, now that there are `span` of them; other new rows are no members."""
        if span > len(self._mask):
            wider = np.zeros(max(span, 2 * len(self._mask)), np.bool_)
            wider[: len(self._mask)] = self._mask
            self._mask = wider
        self._tree.grow(span)
        differs = self._mask[rows] != member
        rows, member = rows[differs], member[differs]
        self._mask[rows] = member
        self._tree.set(rows, member.astype(np.float64))

    def select(self, ranks: NDArray[np.int64]) -> Rows:
        """Rows of the members of these ranks, 0 the oldest."""
        return self._tree.find(ranks.astype(np.float64) + 0.5) if len(ranks) else np.empty(0, np.int64)

    def rows(self) -> Rows:
        """All members, ascending."""
        return np.flatnonzero(self.mask)


class Subset(Columns):
    """Columns in which only the members of a set are alive: a sampler given these never sees another row."""

    def __init__(self, columns: Columns, members: RowSet) -> None:
        self._columns, self._members = columns, members
        self.train_step = columns.train_step

    def __len__(self) -> int:
        return len(self._members)

    @property
    def span(self) -> int:
        return self._columns.span

    @property
    def sources(self) -> tuple[str, ...]:
        return self._columns.sources

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._members.mask if name == "alive" else self._columns[name]

    def select(self, ranks: NDArray[np.int64]) -> Rows:
        return self._members.select(ranks)

    def live(self) -> Rows:
        return self._members.rows()

    def rows_of(self, rollout_ids: NDArray[np.int64]) -> Rows:
        rows = self._columns.rows_of(rollout_ids)
        found = rows >= 0
        return np.where(found & self._members.mask[np.where(found, rows, 0)], rows, -1) if self.span else rows
