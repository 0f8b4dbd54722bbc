"""Samplers that spread the draws: every rollout once an epoch, and the never used ones first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows, enough
from ostinato.buffer.sampling.rowset import RowSet
from ostinato.errors import CheckpointError


class Epoch:
    """Without replacement over an epoch: every live rollout once, in random order, before any comes again.

    A batch always has exactly n rollouts, each at most once: when fewer wait than are asked for, the batch takes all
    of them, a new epoch begins, and the rest comes from the rollouts that the batch does not hold yet. Rollouts that
    arrive join the current epoch: each is as likely to come next as any other that still waits. Rollouts that leave
    the buffer leave the epoch. O(n log N) a batch, O(N) once an epoch.
    """

    repeats = False

    def __init__(self) -> None:
        self._waiting = RowSet()
        self._drawn: list[NDArray[np.int64]] = []

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Rows:
        size = enough(self, columns, n)
        waiting = len(self._waiting)
        rows = self._waiting.select(rng.choice(waiting, min(size, waiting), replace=False) if waiting else _none())
        if size > waiting:
            more = others(columns, rows, size - waiting, rng)
            self._drawn = []
            self._waiting.rebuilt(columns.alive)
            rows = np.concatenate([rows, more])
            self._strike(columns, more)
        else:
            self._strike(columns, rows)
        return rows

    def rebuilt(self, columns: Columns) -> None:
        """Match the rollouts drawn in this epoch with the rows as they are now."""
        drawn = np.concatenate([_none(), *self._drawn])
        rows = columns.rows_of(drawn)
        waiting = columns.alive.copy()
        waiting[rows[rows >= 0]] = False
        self._drawn = [drawn[rows >= 0]]
        self._waiting.rebuilt(waiting)

    def changed(self, columns: Columns, rows: Rows) -> None:
        """New rows wait; rows that left do not."""
        known = len(self._waiting.mask)
        old = rows < known
        waits = columns.alive[rows]
        waits[old] &= self._waiting.mask[rows[old]]
        self._waiting.assign(columns.span, rows, waits)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """`drawn`: ids of the rollouts that had their turn in this epoch."""
        return {"drawn": np.concatenate([_none(), *self._drawn])}

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over an epoch; call `rebuilt` next. Raises `CheckpointError` without `drawn`."""
        if "drawn" not in arrays:
            raise CheckpointError("the state of an epoch lacks the array 'drawn'")
        self._drawn = [np.array(arrays["drawn"], np.int64)]

    def _strike(self, columns: Columns, rows: Rows) -> None:
        self._waiting.assign(columns.span, rows, np.zeros(len(rows), np.bool_))
        self._drawn.append(columns["rollout_id"][rows])


class NeverUsedFirst:
    """Rollouts that were never drawn come first, the rest of the batch from the others; both uniformly.

    No rollout twice in a batch. When more than n are new, which of them come is random. O(n log N) a batch.
    """

    repeats = False

    def __init__(self) -> None:
        self._fresh = RowSet()

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Rows:
        size, fresh = enough(self, columns, n), len(self._fresh)
        rows = self._fresh.select(rng.choice(fresh, min(size, fresh), replace=False) if fresh else _none())
        return np.concatenate([rows, others(columns, rows, size - len(rows), rng)])

    def rebuilt(self, columns: Columns) -> None:
        """Find the rollouts never drawn."""
        self._fresh.rebuilt(columns.alive & (columns["uses"] == 0))

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Rows that came, left or were drawn."""
        self._fresh.assign(columns.span, rows, columns.alive[rows] & (columns["uses"][rows] == 0))


def others(columns: Columns, rows: Rows, n: int, rng: np.random.Generator) -> Rows:
    """n live rows that are not among the given distinct live rows, uniformly without replacement, in random order."""
    if n == 0:
        return _none()
    # A uniform set of n + len(rows), in random order, has at least n other rows; the first n of these are uniform too.
    some = columns.select(rng.choice(len(columns), n + len(rows), replace=False))
    return some[~np.isin(some, rows)][:n]


def _none() -> NDArray[np.int64]:
    return np.empty(0, np.int64)
