"""Finding rows without a look at all of them: the newcomers, the oldest, the row behind which the newest begin.

The index of a rule or an order is keyed by rollout id and catches up when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns

Rows = NDArray[np.int64]
"""Row numbers or rollout ids, int64 (n,)."""

NONE: Rows = np.empty(0, np.int64)
NONE.flags.writeable = False


def first_row_from(columns: Columns, rollout_id: int) -> int:
    """The first row whose rollout id is at least this one, `span` when there is none; O(log span).

    Ids rise along the rows, those of dead rows included.
    """
    return int(np.searchsorted(columns["rollout_id"], rollout_id))


def arrivals(columns: Columns, newest_id: int) -> Rows:
    """Live rows of the rollouts that came after `newest_id`, oldest first."""
    first = first_row_from(columns, newest_id + 1)
    return first + np.flatnonzero(columns.alive[first:])


def living(columns: Columns, rows: Rows) -> Rows:
    """Those of the given rows that are live; the others may have left, even lie behind the last one now."""
    rows = rows[rows < columns.span]
    return rows[columns.alive[rows]]


def where_newest_begin(columns: Columns, n: int) -> int:
    """The row of the n-th newest live rollout, of n or more: `span` for n = 0. Counts the newest n bytes of `alive`."""
    alive, row = columns.alive, columns.span - n
    missing = n - int(np.count_nonzero(alive[row:]))
    while missing > 0 < row:  # some of the newest have left: go back for as many
        lower = max(0, row - 2 * missing - 64)
        rows = lower + np.flatnonzero(alive[lower:row])
        if len(rows) >= missing:
            return int(rows[-missing])
        row, missing = lower, missing - len(rows)
    return row


def outgrown(indexed: int, held: int) -> bool:
    """Whether an index that forgets late holds so many rollouts that left that starting over pays."""
    return indexed > 2 * held + 1024


def grouped(keys: Rows, values: Rows) -> Iterator[tuple[int, Rows]]:
    """(key, its values in order) for every distinct key, rising."""
    if not len(keys):
        return
    if (keys == keys[0]).all():  # the common case: one group, one version
        yield int(keys[0]), values
        return
    order = np.argsort(keys, kind="stable")
    distinct, starts = np.unique(keys[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(values[order], starts[1:]), strict=True)
