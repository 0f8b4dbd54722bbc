"""Eviction by a score of each rollout: keep the best, or a uniform sample of everything that ever came."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.retention.arrivals import NONE, Rows, living, outgrown
from ostinato.buffer.retention.scores import Score, scores_of
from ostinato.buffer.sampling.pending import Pending
from ostinato.buffer.settings import is_function
from ostinato.errors import ConfigError
from ostinato.setting_checks import check_whole, shown


@dataclass(slots=True)
class KeepBest:
    """The rollouts of the lowest score leave first; of equal scores the older, and NaN in a column before everything.

    `by`: a column, or a function of the columns and rows. Writing a priority or another column back moves the rollout.
    Changes are noted when they happen and scored when somebody must leave, all at once: a function that fails does so
    then (`DataError`), before anything has changed, and fails again until its input is mended.
    A heap of (score, rollout id) with lazy deletion: O(log N) a rollout that comes, leaves or changes its score.
    Raises `ConfigError` when there is no such column.
    """

    by: str | Score = "priority"
    _heap: list[tuple[float, int]] = field(default_factory=list, init=False, repr=False, compare=False)
    _scores: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _pending: Pending = field(default_factory=Pending, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.by, str) and not is_function(self.by):
            raise ConfigError(f"by must be a column or a function of columns and rows, got {shown(self.by)}")

    def victims(self, columns: Columns, rows_over: int, n_new: int) -> Rows:
        return self.next_victims(columns, rows_over)

    def next_victims(self, columns: Columns, n: int) -> Rows:
        self._catch_up(columns)
        entries: list[tuple[float, int]] = []
        found: list[Rows] = [NONE]
        while len(entries) < n and self._heap:
            batch = self._pop(n - len(entries), {rollout_id for _, rollout_id in entries})
            rows = columns.rows_of(np.array([rollout_id for _, rollout_id in batch], np.int64))
            for entry, row in zip(batch, rows.tolist(), strict=True):
                if row < 0:
                    del self._scores[entry[1]]
                else:
                    entries.append(entry)
            found.append(rows[rows >= 0])
        for entry in entries:  # they go when the buffer drops them, not before
            heapq.heappush(self._heap, entry)
        return np.sort(np.concatenate(found))

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Rows came, or may have another score now."""
        self._pending.changed(columns, rows)

    def rebuilt(self, columns: Columns) -> None:
        """Everything may be different: score everything anew when asked."""
        if isinstance(self.by, str):
            try:
                column = columns[self.by]
            except KeyError as error:
                raise ConfigError(f"KeepBest: {error.args[0]}") from None
            if column.ndim != 1 or column.dtype.kind not in "biuf":
                raise ConfigError(f"KeepBest: column {self.by!r} is {column.dtype} {column.shape}, expected numbers")
        self._pending.rebuilt()

    def _catch_up(self, columns: Columns) -> None:
        if outgrown(len(self._heap), len(columns)):
            self._pending.rebuilt()
        if not self._pending:
            return
        everything = self._pending.everything
        rows = columns.live() if everything else living(columns, self._pending.rows())
        scores = self._scored(columns, rows)
        if everything:
            self._heap, self._scores = [], {}
        self._push(columns, rows, scores)
        self._pending.done()

    def _scored(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        if not isinstance(self.by, str):
            return scores_of(self.by, columns, rows, role="score function of KeepBest,")
        scores = columns[self.by][rows].astype(np.float64)
        return np.where(np.isnan(scores), -np.inf, scores)

    def _push(self, columns: Columns, rows: Rows, scores: NDArray[np.float64]) -> None:
        moved = []
        for rollout_id, score in zip(columns["rollout_id"][rows].tolist(), scores.tolist(), strict=True):
            if self._scores.get(rollout_id) != score:
                self._scores[rollout_id] = score
                moved.append((score, rollout_id))
        if len(moved) > len(self._heap) // 8:
            self._heap += moved
            heapq.heapify(self._heap)
        else:
            for entry in moved:
                heapq.heappush(self._heap, entry)

    def _pop(self, n: int, taken: set[int]) -> list[tuple[float, int]]:
        """Up to n entries that are still true, worst first; those of rollouts `taken` before are dropped."""
        entries: list[tuple[float, int]] = []
        while self._heap and len(entries) < n:
            score, rollout_id = heapq.heappop(self._heap)
            if self._scores.get(rollout_id) == score and rollout_id not in taken:
                entries.append((score, rollout_id))
                taken.add(rollout_id)
        return entries


@dataclass(slots=True)
class Reservoir:
    """A uniform sample, without replacement, of every rollout that ever came.

    Each rollout has a lottery number, a hash of `seed` and its id; the highest N stay, newcomers among them or not. So
    at a fixed capacity every set of N is equally likely (Vitter 1985 draws the numbers one after the other), also in
    bytes, and there is no state besides the seed: a buffer that is saved, loaded, halved or split goes on drawing the
    same lottery. After growing, or where rules make room, newcomers take it. O(log N) a rollout.
    """

    seed: int
    _best: KeepBest = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.seed = check_whole("seed", self.seed, least=0, most=2**64 - 1)
        self._best = KeepBest(by=self.numbers)

    def numbers(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """Lottery numbers of the given rows, uniform on [0, 1): float64 (len(rows),)."""
        return lottery(self.seed, columns["rollout_id"][rows])

    def victims(self, columns: Columns, rows_over: int, n_new: int) -> Rows:
        return self._best.victims(columns, rows_over, n_new)

    def next_victims(self, columns: Columns, n: int) -> Rows:
        return self._best.next_victims(columns, n)

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Newcomers get their number."""
        self._best.changed(columns, rows)

    def rebuilt(self, columns: Columns) -> None:
        """Everything may be different."""
        self._best.rebuilt(columns)


def lottery(seed: int, rollout_ids: Rows) -> NDArray[np.float64]:
    """A number on [0, 1) for each id, fixed by seed and id: SplitMix64 (Steele, Lea, Flood 2014) from that seed."""
    state = np.uint64(_mixed(np.array([seed % 2**64], np.uint64))[0])
    with np.errstate(over="ignore"):
        mixed = _mixed(state + (rollout_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
