"""Records of rows, copied out of rings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.sharing.layout import RECORD_COLUMNS, Layout

Int = NDArray[np.int64]


class Records:
    """n records in memory of their own. By payload column, int64 (columns, n): `starts`, `counts` and `widths`, copied
    once more, and `sizes`, the bytes of each span."""

    def __init__(self, layout: Layout, raw: NDArray[np.uint8]) -> None:
        self.layout = layout
        self.raw = raw
        self._fields: NDArray[Any] = raw.view(layout.record)[:, 0]
        k = len(layout.columns)
        self._spans: Int = raw.view(np.int64)[:, : 3 * k].T.copy()
        self.starts, self.counts, self.widths = self._spans[:k], self._spans[k : 2 * k], self._spans[2 * k :]
        self.sizes: Int = self.counts * self.widths * layout.cells[:, None]

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A field of all records, a view."""
        return self._fields[name]

    def columns(self) -> dict[str, NDArray[Any]]:
        """The row columns of `Rollouts` but for the source, copied: those of one width in one piece of memory."""
        found: dict[str, NDArray[Any]] = {}
        for word, first, names in self.layout.blocks:
            block = self.raw.view(word)[:, first : first + len(names)].T.copy()
            for name, values in zip(names, block, strict=True):
                dtype = RECORD_COLUMNS[name]
                found[name] = values if dtype is word.type else values.view(dtype)
        return found

    def select(self, rows: Any) -> Records:
        """Some of them, copied; their spans are where their rings have them."""
        return Records(self.layout, self.raw[rows])

    def put(self, rows: Int, others: Records) -> None:
        """Exchange some of them."""
        self.raw[rows] = others.raw
        self._spans[:, rows], self.sizes[:, rows] = others._spans, others.sizes
