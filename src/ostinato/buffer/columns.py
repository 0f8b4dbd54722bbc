"""What samplers and retention rules may look at: read-only columns, oldest row first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.table import Table
from ostinato.rollouts import ROW_COLUMNS

BOOK_COLUMNS: dict[str, Any] = {
    "rollout_id": np.int64,
    "insert_step": np.int64,
    "uses": np.int64,
    "last_use_step": np.int64,
}


class Columns:
    """Read-only view of the rows of a buffer, arrays of shape (n,), oldest first.

    Names: the row columns of `Rollouts`, and `rollout_id` (monotone), `insert_step`, `uses`,
    `last_use_step` (-1: never).
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in ROW_COLUMNS and name not in BOOK_COLUMNS:
            raise KeyError(f"no column {name!r}; there are {sorted([*ROW_COLUMNS, *BOOK_COLUMNS])}")
        view = self._table[name]
        view.flags.writeable = False
        return view
