"""What a buffer holds: the table of scalars, the payload its rows point to, and who must hear of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.checks import find_fault
from ostinato.buffer.columns import Columns
from ostinato.buffer.kernels import Apart, Departed, Drawn, Exchanged, Kernels
from ostinato.buffer.payload import TOKEN_BYTES, Payload, handle_name, incoming_bytes
from ostinato.buffer.repeats import all_the_same
from ostinato.buffer.sampling.protocol import Indexed
from ostinato.buffer.table import Table
from ostinato.buffer.tally import ROWS
from ostinato.buffer.workspace import Workspace
from ostinato.ragged import Extra
from ostinato.rollouts import Rollouts, extra_layouts

Int = NDArray[np.int64]

HANDLE_BYTES = np.dtype(np.int64).itemsize
BOOK = ("rollout_id", "insert_step", "uses", "last_use_step")


class Contents:
    """Rows and payload of one buffer. Not more than memory: capacity and rules are `ReplayBuffer`'s."""

    def __init__(self, kernels: Kernels, indexes: Sequence[Indexed]) -> None:
        self.kernels = kernels
        self.train_step = 0
        self._indexes = tuple(indexes)
        self.exchanges = kernels.exchanges and not indexes
        """Whether `exchange` is worth a try."""
        self._stale = False  # the indexes must begin anew: one was interrupted, or raised
        self._new, self._written = 0, True  # first row of the latest append, and whether its columns are there
        self.claimed: list[object] = []
        """Parts that belong to this buffer and no other."""
        self._names: tuple[tuple[str, ...], NDArray[np.str_]] = ((), np.array([""]))  # of sources, and as an array
        self.payload = Payload({}, {}, kernels)
        self.table = Table(self.payload.handle_names)
        self._rebuilt()

    def empty(self, like: Rollouts) -> None:
        """Forget all rollouts; what comes next has the extra columns of `like`."""
        self.payload = Payload.for_rollouts(like, self.kernels)
        self.table = Table(self.payload.handle_names, self.table.sources)  # statistics go by their codes
        self._rebuilt()

    def adopt(self, payload: Payload, columns: Mapping[str, Any], sources: Sequence[str], n: int) -> None:
        """Hold these n rows, whose handles are among the columns, instead of what is held."""
        table = Table(payload.handle_names, tuple(sources), n)
        table.append(n)
        for name, values in {**columns, "alive": True}.items():
            table[name][:] = values
        self.payload, self.table = payload, table
        self._rebuilt()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def columns(self) -> Columns:
        """What samplers and rules may look at; they are up to date then."""
        if self._stale:
            self._rebuilt()
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
        handles = len(rollouts.extras) - len(self.payload.extras)  # more than now, when the table is made anew
        return incoming_bytes(rollouts) + self.table.row_bytes + HANDLE_BYTES * handles

    def bytes_of(self, rows: Int) -> Int:
        """Bytes that rows take when they share nothing, (n,)."""
        table = self.table
        total = TOKEN_BYTES * table["length"][rows].astype(np.int64) + table.row_bytes
        for name, blobs in self.payload.extras.items():
            handles = table[handle_name(name)][rows]
            total += np.where(handles < 0, 0, blobs.arena.item_bytes * blobs.arena.lengths(handles))
        return total

    def append(self, rollouts: Rollouts, ids: Int, book: Mapping[str, Any]) -> Int:
        """Add rows without their payload, which `fill` brings when there is room; returns their row numbers.

        `book`: priority and, where they are not those of rows that come now, other columns. After an error, also one
        of an index, `withdraw` them.
        """
        if not len(self) and extra_layouts(rollouts) != self.payload.layouts:
            self.empty(rollouts)
        n, table = len(rollouts), self.table
        if table.needs_room(n):
            self.compact(n)
        settled: dict[str, Any] = {"insert_step": self.train_step, **book}
        settled["source_code"] = table.code_of(rollouts.source)
        settled.setdefault("group_rows", group_sizes(rollouts.group_id))
        self._new, self._written = table.span, False
        start = table.append(n)
        various = {name: values for name, values in settled.items() if isinstance(values, np.ndarray)}
        self.kernels.append(table, start, rollouts, ids, settled | dict.fromkeys(various, 0))
        for name, values in various.items():
            table[name][start:] = values
        self._written = True
        rows = np.arange(start, start + n)
        self._changed(rows)
        return rows

    def exchange(
        self, rollouts: Rollouts, ids: Int, priority: float, train_step: int, leaving: int, apart: Apart | None
    ) -> Exchanged | None:
        """`append`, `drop` of the oldest rows and `fill` in one call, where nobody need hear of it in between.

        None, and nothing is done, where that cannot be, nor for rollouts that `inspect` would refuse.
        """
        table, n = self.table, len(ids)
        if rollouts.extras or not n:
            return None
        source = table.code_of(rollouts.source) if apart is None else table.code_of_name(apart.source)
        if not isinstance(source, int):
            return None
        if table.needs_room(n):
            self.compact(n)
        settled = {"insert_step": train_step, "priority": priority, "group_rows": n, "source_code": source}
        try:
            done = self.payload.exchange(table, rollouts, ids, settled, leaving, apart)
            if done is None:
                return None
            self.train_step, start = train_step, table.append(n)
            table.count_dead(leaving, done.first)
        except BaseException:  # an interrupt: as in `drop`
            table.recount()
            raise
        if done.slabs < 0:
            whole = rollouts if apart is None else rollouts.replace(**apart.packed())
            self.fill(whole, np.arange(start, start + n), None)
        elif not done.shared:
            tokens = np.ascontiguousarray(rollouts.tokens if apart is None else apart.given[0][0])
            table["prompt"][start:] = self.payload.prompts.put_same(tokens, 0, int(rollouts.prompt_length[0]), n)
        return done

    def inspect(self, rollouts: Rollouts, train_step: int) -> NDArray[np.int8] | None:
        """How each rollout is to be stored. Raises `DataError` for numbers that are not finite or from the future."""
        try:
            return self.kernels.inspect(rollouts, train_step)
        except FloatingPointError:
            find_fault(rollouts, train_step)
            raise

    def withdraw(self, first_id: int) -> None:
        """Take back rows from this rollout id on, whatever has become of them."""
        table = self.table
        if not self._written:  # nothing points anywhere yet
            table.cut(self._new)
            self._written = True
        new = np.arange(np.searchsorted(table["rollout_id"], first_id), table.span)
        if len(new):
            self.drop(new[table["alive"][new]])
            self.compact()

    def fill(self, rollouts: Rollouts, rows: Int, kinds: NDArray[np.int8] | None) -> None:
        """Copy the payload of the last appended rows that are still there; `kinds`: see `Kernels.inspect`."""
        table, chosen = self.table, None
        kept = table["alive"][table.span - len(rows) :]
        if np.count_nonzero(kept) < len(rows):
            chosen = np.flatnonzero(kept)
            rows = rows[chosen]
        if not len(rows):
            return
        handles = self.payload.put(rollouts, kinds, chosen)
        for name, values in handles.items():
            if chosen is None:
                table[name][-len(rows) :] = values
            else:
                table[name][rows] = values

    def drop(self, rows: Int) -> Departed:
        """Remove live rows and their payload; row numbers stay as they are. `dropped` is to follow."""
        try:
            departed, first = self.kernels.kill(self.table, rows, self.table.first)
            self.table.count_dead(len(rows), first)
            self.payload.release(departed.handles)
        except BaseException:  # an interrupt: what of the payload is not released stays in memory
            self.table.recount()
            raise
        return departed

    def dropped(self, rows: Int) -> None:
        """Tell the indexes of rows that are gone."""
        self._changed(rows)

    def settle(self) -> None:
        """Compact when enough rows are dead: the only time, besides `append`, when row numbers change."""
        if self.table.is_worn():
            self.compact()

    def compact(self, room: int = 0, *, exact: bool = False) -> None:
        """Renumber the rows 0 to n - 1 and make room for more; `exact`: take the memory that a new table would take."""
        self._stale = True
        self.table.compact(room, exact=exact)
        self._rebuilt()

    def write(self, rows: Int, columns: Mapping[str, Any]) -> None:
        """Set columns of rows; after what an index raises they are what they were."""
        before = {name: self.table[name][rows] for name in columns}
        try:
            for name, values in columns.items():
                self.table[name][rows] = values
            self._changed(rows)
        except BaseException:
            self._stale = True
            for name, values in before.items():
                self.table[name][rows] = values
            raise

    def draw(self, rows: Int, correct_above: float) -> Drawn | None:
        """Gather rows and count them as drawn; None, and nothing is done, when one of them is not live.

        After what an index raises they count as they did.
        """
        drawn = self.kernels.draw(self.table, rows, self.train_step, correct_above)
        if drawn is not None and self._indexes:
            try:
                self._changed(rows, [index for index in self._indexes if getattr(index, "heeds_draws", True)])
            except BaseException:
                self.undraw(rows, drawn)
                raise
        return drawn

    def undraw(self, rows: Int, drawn: Drawn) -> None:
        """Take a draw back; the indexes begin anew."""
        self._stale = True
        for name in ("uses", "last_use_step"):
            self.table[name][rows] = drawn.row[name]

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
        if self._names[0] is not self.table.sources:
            self._names = self.table.sources, np.array(self.table.sources or ("",), np.str_)
        return self._names[1].take(codes)

    def _changed(self, rows: Int, concerned: Sequence[Indexed] | None = None) -> None:
        if not self._indexes:
            return
        if self._stale:
            self._rebuilt()
            return
        self._stale = True  # until all have heard of it
        columns = Columns(self.table, self.train_step)
        for index in self._indexes if concerned is None else concerned:
            index.changed(columns, rows)
        self._stale = False

    def _rebuilt(self) -> None:
        self._stale = True
        columns = Columns(self.table, self.train_step)
        for index in self._indexes:
            index.rebuilt(columns)
        self._stale = False


def group_sizes(group_id: Int) -> Int | int:
    """For every row how many rows share its group; one number when all do."""
    if len(group_id) and all_the_same(group_id):
        return len(group_id)
    _, which, counts = np.unique(group_id, return_inverse=True, return_counts=True)
    return np.asarray(counts[which.reshape(-1)])
