"""What a buffer holds: the table of scalars, the payload its rows point to, and who must hear of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.kernels import Kernels
from ostinato.buffer.payload import Payload, incoming_bytes
from ostinato.buffer.table import Table
from ostinato.buffer.workspace import Workspace
from ostinato.ragged import Extra
from ostinato.rollouts import ROW_COLUMNS, Rollouts, extra_layouts

Int = NDArray[np.int64]

ROWS = tuple(name for name in ROW_COLUMNS if name != "source")
BOOK = ("rollout_id", "insert_step", "uses", "last_use_step")


@runtime_checkable
class Index(Protocol):
    """A sampler, a rule or an eviction order that keeps something derived from the columns."""

    def rebuilt(self, columns: Columns) -> None:
        """Rows have other numbers, or everything changed: derive it anew."""

    def changed(self, columns: Columns, rows: Int) -> None:
        """These rows were added, removed (not alive now), used, or their columns written."""


class Contents:
    """Rows and payload of one buffer. Not more than memory: capacity and rules are `ReplayBuffer`'s."""

    def __init__(self, kernels: Kernels, indexes: Sequence[Index]) -> None:
        self.kernels = kernels
        self.train_step = 0
        self._indexes = tuple(indexes)
        self.empty(None)

    def empty(self, like: Rollouts | None) -> None:
        """Forget everything; what comes next has the extra columns of `like`, None: no extra columns."""
        if isinstance(like, Rollouts):
            self.payload = Payload.for_rollouts(like, self.kernels)
        else:
            self.payload = Payload({}, {}, self.kernels)
        self.table = Table(self.payload.handle_names)
        self._rebuilt()

    def adopt(self, payload: Payload, columns: Mapping[str, Any], sources: Sequence[str], n: int) -> None:
        """Hold these n rows, whose handles are among the columns, instead of what is held."""
        table = Table(payload.handle_names)
        table.compact(n)
        table.sources = tuple(sources)
        handles = {name: columns[name] for name in ("payload", "prompt", *payload.handle_names)}
        rows = table.append(n, {name: values for name, values in columns.items() if name not in handles})
        for name, values in handles.items():
            table[name][rows] = values
        self.payload, self.table = payload, table
        self._rebuilt()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def columns(self) -> Columns:
        """What samplers and rules may look at."""
        return Columns(self.table, self.train_step)

    def live_columns(self) -> Columns:
        """Columns in which every row is live."""
        if len(self.table) < self.table.span:
            self.compact()
        return self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of what is held: payload, shared values once, and a row of scalars a rollout."""
        return self.payload.live_bytes + len(self.table) * self.table.row_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken."""
        return self.payload.allocated_bytes + self.table.allocated_bytes

    def bytes_for(self, rollouts: Rollouts) -> Int:
        """Bytes each rollout will need at most, (n,)."""
        return incoming_bytes(rollouts) + self.table.row_bytes

    def append(self, rollouts: Rollouts, book: Mapping[str, Any]) -> Int:
        """Add rows without their payload, which `fill` brings when there is room; returns their row numbers.

        What an index raises about them leaves everything as it was.
        """
        if not len(self) and extra_layouts(rollouts) != self.payload.layouts:
            self.empty(rollouts)
        n = len(rollouts)
        if self.table.needs_room(n):
            self.compact(n)
        columns = dict(book)
        for name in ROWS:
            columns[name] = getattr(rollouts, name)
        columns["source_code"] = self.table.code_of(rollouts.source)
        columns["length"] = rollouts.offsets[1:] - rollouts.offsets[:-1]
        rows = self.table.append(n, columns)
        try:
            self._changed(rows)
        except BaseException:
            self.table.forget(n)
            self._rebuilt()
            raise
        return rows

    def fill(self, rollouts: Rollouts, rows: Int) -> None:
        """Copy the payload of the last appended rows that are still there."""
        chosen, kept = None, self.table["alive"][rows]
        if not kept.all():
            chosen = np.flatnonzero(kept)
            rows = rows[chosen]
        if not len(rows):
            return
        try:
            handles = self.payload.put(rollouts, chosen)
        except BaseException:
            self.drop(rows)
            raise
        for name, values in handles.items():
            self.table[name][rows] = values

    def drop(self, rows: Int) -> None:
        """Remove live rows and their payload; row numbers stay as they are."""
        handles = {name: self.table[name][rows] for name in ("payload", "prompt", *self.payload.handle_names)}
        self.payload.release(handles)
        self.table.kill(rows)
        self._changed(rows)

    def settle(self) -> None:
        """Compact when enough rows are dead: the only time, besides `append`, when row numbers change."""
        if self.table.is_worn():
            self.compact()

    def compact(self, room: int = 0) -> None:
        """Renumber the rows 0 to n - 1 and make room for more."""
        self.table.compact(room)
        self._rebuilt()

    def write(self, rows: Int, columns: Mapping[str, Any]) -> None:
        """Set columns of rows."""
        for name, values in columns.items():
            self.table[name][rows] = values
        self._changed(rows)

    def used(self, rows: Int, correct_above: float) -> tuple[Int, NDArray[np.float64], Int]:
        """Count a draw of rows, repeats one by one; returns what `Kernels.count_draw` does."""
        counted = self.kernels.count_draw(rows, self.table, self.train_step, correct_above)
        self._changed(rows)
        return counted

    def rollouts(self, row: Mapping[str, NDArray[Any]], out: Workspace) -> Rollouts:
        """Packed rollouts for columns gathered from the table; a copy."""
        tokens, extras = self.payload.packed(row, row["length"], out)
        return self.assemble(row, tokens, extras)

    def assemble(
        self, row: Mapping[str, NDArray[Any]], tokens: Mapping[str, NDArray[Any]], extras: Mapping[str, Extra]
    ) -> Rollouts:
        """A record of columns that are known to fit."""
        return Rollouts.trusted(
            **tokens, **{name: row[name] for name in ROWS}, source=self.source_names(row["source_code"]), extras=extras
        )

    def source_names(self, codes: NDArray[np.int32]) -> NDArray[np.str_]:
        """Names of data sets by their codes."""
        return np.array(self.table.sources or ("",), np.str_)[codes]

    def _changed(self, rows: Int) -> None:
        for index in self._indexes:
            index.changed(self.columns, rows)

    def _rebuilt(self) -> None:
        for index in self._indexes:
            index.rebuilt(self.columns)


def group_sizes(group_id: Int) -> Int | int:
    """For every row how many rows share its group; one number when all do."""
    if len(group_id) and (group_id == group_id[0]).all():
        return len(group_id)
    _, which, counts = np.unique(group_id, return_inverse=True, return_counts=True)
    return np.asarray(counts[which.reshape(-1)])
