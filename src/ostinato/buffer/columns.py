"""What samplers and retention rules may look at: read-only columns, oldest row first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ostinato.buffer.table import Table


class Columns:
    """Read-only view of the rows of a buffer, oldest first, at one train step.

    A row is a position, 0 to `span` - 1. Rollouts that left may keep their row for a while: `alive` says which rows
    count, `len` how many do. In `ReplayBuffer.columns` every row is live.
    """

    def __init__(self, table: Table, train_step: int) -> None:
        self._table = table
        self.train_step = train_step

    def __len__(self) -> int:
        return len(self._table)

    @property
    def span(self) -> int:
        """Rows, dead ones included."""
        return self._table.span

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which rows hold a rollout, (span,)."""
        return self["alive"]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the data sets; `source_code` indexes them."""
        return self._table.sources

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column, (span,), read-only; what stands in dead rows means nothing. Raises `KeyError` for other names."""
        view = self._table[name]
        view.flags.writeable = False
        return view

    def select(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the live rollouts of these ranks, 0 the oldest."""
        return self._table.select(ranks)

    def oldest(self, n: int) -> NDArray[np.int64]:
        """The n oldest live rows, ascending; all of them when there are fewer. O(n) and the dead rows among them."""
        return self._table.oldest(n)

    def live(self) -> NDArray[np.int64]:
        """Rows of all live rollouts, ascending, (n,)."""
        return self._table.live()

    def rows_of(self, rollout_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each id, -1 where the rollout is gone."""
        return self._table.rows_of(rollout_ids)
