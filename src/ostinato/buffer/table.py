"""The rows of a buffer, oldest first: named columns over one sliding window.

Appending is amortised O(1) a row, dropping the oldest moves an index, any other removal is one masked copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Table:
    """Columns of equal length whose rows stay in insertion order. Object columns hold one array a row.

    `extras`: the layout of each extra column (`ostinato.ragged.layout`), held as the object column `extra.NAME`.
    """

    def __init__(self, dtypes: Mapping[str, Any], extras: Mapping[str, str]) -> None:
        self.extras = extras
        dtypes = {**dtypes, **{f"extra.{name}": object for name in extras}}
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(16, dtype) for name, dtype in dtypes.items()}
        self._start = 0
        self._stop = 0

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The live rows of a column, a writable view."""
        return self._columns[name][self._start : self._stop]

    def append(self, n: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add n rows behind the newest."""
        self._make_room(n)
        for name, values in columns.items():
            column = self._columns[name]
            if column.dtype.kind == "U" and values.dtype.itemsize > column.dtype.itemsize:
                column = self._columns[name] = column.astype(values.dtype)
            column[self._stop : self._stop + n] = values
        self._stop += n

    def drop_oldest(self, n: int) -> None:
        """Remove the n oldest rows."""
        for column in self._columns.values():
            if column.dtype == object:
                column[self._start : self._start + n] = None
        self._start += n

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep the live rows where the mask is True."""
        kept = int(np.count_nonzero(mask))
        for column in self._columns.values():
            column[self._start : self._start + kept] = column[self._start : self._stop][mask]
            if column.dtype == object:
                column[self._start + kept : self._stop] = None
        self._stop = self._start + kept

    def _make_room(self, n: int) -> None:
        size = len(self._columns["rollout_id"])
        if self._stop + n <= size:
            return
        live = len(self)
        grown = max(size, 2 * (live + n))
        for name, column in self._columns.items():
            fresh = np.empty(grown, column.dtype)
            fresh[:live] = column[self._start : self._stop]
            self._columns[name] = fresh
        self._start, self._stop = 0, live
