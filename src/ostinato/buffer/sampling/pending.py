"""Which rows changed since an index last looked."""

from __future__ import annotations

import numpy as np

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows
from ostinato.buffer.sumtree import distinct


class Pending:
    """Rows whose entry is out of date: what `changed` reported since the last look, or everything."""

    def __init__(self) -> None:
        self.rebuilt()

    def __bool__(self) -> bool:
        return self.everything or self._count > 0

    def rebuilt(self) -> None:
        """Everything is out of date."""
        self.everything, self._parts, self._count = True, list[Rows](), 0

    def changed(self, columns: Columns, rows: Rows) -> None:
        """These rows are out of date."""
        if not self.everything:
            self._parts.append(rows.copy())
            self._count += len(rows)
            if self._count > columns.span:
                self.rebuilt()

    def rows(self) -> Rows:
        """The rows reported, ascending, each once."""
        if not self._parts:
            return np.empty(0, np.int64)
        return distinct(np.sort(np.concatenate(self._parts)))

    def done(self) -> None:
        """Nothing is out of date."""
        self.everything, self._parts, self._count = False, [], 0
