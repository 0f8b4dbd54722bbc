"""Uniform draws from rings while their producers overwrite them.

Rows near a tail may be overwritten before a batch is copied. They are copied first, and checked at once; one that was
torn is drawn anew from what is held by then. So all rows of a batch are whole, and few are copied twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.workspace import Workspace
from ostinato.errors import RunError
from ostinato.rollouts import Rollouts
from ostinato.sharing.records import Int, Records
from ostinato.sharing.rows import Rows

LEAST_EXPOSED = 1 / 256
ATTEMPTS, ROUNDS = 20, 50
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole rows: ring numbers, row numbers, records, and the rollouts."""

    ring: Int
    row: Int
    records: Records
    rollouts: Rollouts


class Picker:
    """Draws batches. `retries`: batches begun anew; `torn`: rows drawn anew. A share `_exposed` is copied first."""

    def __init__(self) -> None:
        self.retries = 0
        self.torn = 0
        self._exposed = LEAST_EXPOSED

    def draw(self, rows: Rows, n: int, rng: np.random.Generator, out: Workspace) -> Batch | None:
        """n rows, each uniform over what the rings hold, with replacement, copied to `out`; None when nothing is held.

        Raises `RunError` when they are overwritten faster than they can be copied, which takes a ring of a few rows.
        """
        for _ in range(ATTEMPTS):
            with rows.copying():
                batch = self._attempt(rows, n, rng, out)
            if batch is not None:
                self._exposed = max(LEAST_EXPOSED, 0.98 * self._exposed)
                return batch
            if not rows.held():
                return None
            self.retries += 1
            self._exposed = min(1.0, 4 * self._exposed)
        raise RunError(f"the rings overwrite their rows faster than {n} can be copied; give them more capacity")

    def _attempt(self, rows: Rows, n: int, rng: np.random.Generator, out: Workspace) -> Batch | None:
        if (picked := self._pick(rows, n, rng)) is None:
            return None
        ring, row, exposed = picked
        records, block, used = rows.records(ring, row), ring.copy(), 0
        torn = rows.torn(ring, row)
        for _ in range(ROUNDS):
            rows.check(ring, row, records, torn)
            first = np.flatnonzero(exposed & ~torn) if np.count_nonzero(exposed) else NONE
            if len(first):
                kept = records.select(first)
                used = rows.keep(ring[first], kept, used)
                records.put(first, kept)
                block[first] = len(rows.rings)
                torn |= exposed & rows.torn(ring, row)
            if not np.count_nonzero(torn):
                break
            todo = np.flatnonzero(torn)
            self.torn += len(todo)
            if (picked := self._pick(rows, len(todo), rng)) is None:
                return None
            exposed = np.zeros(n, np.bool_)
            ring[todo], row[todo], exposed[todo] = picked
            records.put(todo, rows.records(ring[todo], row[todo]))
            block[todo] = ring[todo]
            torn[todo] = rows.torn(ring[todo], row[todo])
        else:
            return None
        rollouts = rows.joined(ring, block, records, out)
        late = rows.torn(ring, row)
        if np.count_nonzero(late) and np.count_nonzero(late & (block < len(rows.rings))):
            return None
        return Batch(ring, row, records, rollouts)

    def _pick(self, rows: Rows, n: int, rng: np.random.Generator) -> tuple[Int, Int, NDArray[np.bool_]] | None:
        """Ring and row numbers, and which of them to copy first; None when nothing is held."""
        if len(rows.rings) == 1:
            tail, head = rows.rings[0].bounds()
            if tail == head:
                return None
            row = rng.integers(head - tail, size=n) + tail
            return np.zeros(n, np.int64), row, row < tail + math.ceil(self._exposed * (head - tail))
        tails, heads = rows.bounds()
        ends = np.cumsum(heads - tails)
        if not ends[-1]:
            return None
        rank = rng.integers(ends[-1], size=n)
        ring = np.searchsorted(ends, rank, "right")
        row = rank - ends[ring] + heads[ring]
        limit = tails + np.ceil(self._exposed * (heads - tails)).astype(np.int64)
        return ring, row, np.asarray(row < limit[ring])
