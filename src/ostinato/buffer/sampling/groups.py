"""Whole groups, exactly n rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows, size_given
from ostinato.errors import DataError
from ostinato.setting_checks import check_choice

ORDERS = ("uniform", "newest", "oldest")


class Groups:
    """Draws groups, not rollouts: each with all the members that were added with it, one group after the other.

    A group of which a member has left is never drawn. `order`: "uniform" (at random without replacement), "newest" or
    "oldest" first. Groups may differ in size: one that would leave a rest that no choice of the other groups fills is
    passed over, so a batch has exactly n rollouts. Raises `ConfigError` for another order, `DataError` naming the
    sizes of the complete groups when no choice of them adds up to n. One pass over the columns after a change.
    """

    repeats = False

    def __init__(self, order: str = "uniform") -> None:
        check_choice("order of groups", order, ORDERS)
        self.order = order
        self._groups: CompleteGroups | None = None
        self._seen = (-1, -1)

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Rows:
        size = size_given(self, n)
        if self._groups is None:
            self._groups = complete_groups(columns)
        groups = self._groups
        waiting = {int(s): self._queue(np.flatnonzero(groups.sizes == s), rng) for s in np.unique(groups.sizes)}
        chosen: list[int] = []
        while size:
            fitting = _fitting(waiting, size)
            if not fitting:
                have = {s: int(np.sum(groups.sizes == s)) for s in waiting}
                raise DataError(f"Groups cannot draw {n}: the complete groups, by size, are {have}")
            length = self._next(waiting, fitting, rng)
            chosen.append(waiting[length].pop())
            size -= length
        return np.concatenate([groups.members(group) for group in chosen])

    def rebuilt(self, columns: Columns) -> None:
        """Row numbers changed, or everything did."""
        self._groups, self._seen = None, (columns.span, len(columns))

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Groups change when rows come or leave, which shows in the number of rows or of live ones."""
        if self._seen != (columns.span, len(columns)):
            self.rebuilt(columns)

    def _queue(self, groups: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
        """Groups of one size, the next one last. They are numbered by age, 0 the oldest."""
        if self.order == "uniform":
            groups = rng.permutation(groups)
        elif self.order == "oldest":
            groups = groups[::-1]
        return [int(group) for group in groups]

    def _next(self, waiting: dict[int, list[int]], fitting: list[int], rng: np.random.Generator) -> int:
        if len(fitting) == 1:
            return fitting[0]
        if self.order == "uniform":
            counts = np.array([len(waiting[length]) for length in fitting])
            return fitting[int(rng.choice(len(fitting), p=counts / counts.sum()))]
        sign = 1 if self.order == "newest" else -1
        return max(fitting, key=lambda length: sign * waiting[length][-1])


@dataclass(frozen=True, slots=True)
class CompleteGroups:
    """Groups all of whose members are held, in order of age: group g is `rows[starts[g]:starts[g] + sizes[g]]`."""

    rows: Rows
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def members(self, group: int) -> Rows:
        """Rows of a group, ascending."""
        return self.rows[self.starts[group] : self.starts[group] + self.sizes[group]]


def complete_groups(columns: Columns) -> CompleteGroups:
    """All groups that are complete: live rows of one `group_id` and `insert_step`, as many as `group_rows` says."""
    live = columns.live()
    ids, steps = columns["group_id"][live], columns["insert_step"][live]
    order = np.lexsort((ids, steps))
    rows, ids, steps = live[order], ids[order], steps[order]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (ids[1:] != ids[:-1]) | (steps[1:] != steps[:-1])
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, len(rows)))
    age = np.argsort(rows[starts], kind="stable")
    starts, sizes = starts[age], sizes[age]
    complete = sizes == columns["group_rows"][rows[starts]]
    return CompleteGroups(rows, starts[complete], sizes[complete])


def _fitting(waiting: dict[int, list[int]], n: int) -> list[int]:
    """Sizes of which a group may come next so that the others can still fill the rest exactly."""
    fitting = []
    for length, groups in waiting.items():
        if groups and length <= n:
            counts = {other: len(queue) - (other == length) for other, queue in waiting.items()}
            if _sums(counts, n - length) >> (n - length) & 1:
                fitting.append(length)
    return fitting


def _sums(counts: dict[int, int], n: int) -> int:
    """Bit s is set when some choice of groups, `counts[size]` of each size, adds up to s <= n."""
    sums, below = 1, (1 << (n + 1)) - 1
    for length, count in counts.items():
        step, left = 1, min(count, n // length)
        while left > 0:
            take = min(step, left)
            sums |= (sums << (take * length)) & below
            left, step = left - take, 2 * step
    return sums
