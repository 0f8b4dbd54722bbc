"""Rules: who may stay at all? Each names the rows that must go, whatever room there is."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from ostinato.buffer.columns import Columns
from ostinato.buffer.retention.arrivals import NONE, Rows, arrivals, grouped, living, outgrown
from ostinato.setting_checks import check_whole


@runtime_checkable
class Rule(Protocol):
    """Says which rows must go; never changes the buffer. One that keeps an index belongs to one buffer."""

    def expired(self, columns: Columns, touched: Rows | None) -> Rows:
        """Live rows to drop now, ascending.

        `touched`: rows added or used since the last call, at the same train step; None: any row may be due.
        """


@dataclass(frozen=True, slots=True)
class MaxUses:
    """Rows leave after `n` draws; 1 makes a consume-once queue.

    O(1) a row added or drawn; one vectorized pass when asked about all rows.
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_whole("max_uses", self.n, least=1))

    def expired(self, columns: Columns, touched: Rows | None) -> Rows:
        rows = columns.live() if touched is None else living(columns, np.unique(touched))
        return rows[columns["uses"][rows] >= self.n]


@dataclass(slots=True)
class _Versions:
    """Rollout ids by the oldest weights in them; ids that left stay until their version is asked for."""

    ids: dict[int, list[Rows]] = field(default_factory=dict)
    heap: list[int] = field(default_factory=list)
    size: int = 0
    newest: int = -1

    def forget(self) -> None:
        self.ids, self.heap, self.size, self.newest = {}, [], 0, -1

    def catch_up(self, columns: Columns) -> None:
        if outgrown(self.size, len(columns)):
            self.forget()
        rows = arrivals(columns, self.newest)
        if not len(rows):
            return
        ids = columns["rollout_id"][rows]
        for version, part in grouped(columns["policy_version_min"][rows], ids):
            if version not in self.ids:
                self.ids[version] = []
                heapq.heappush(self.heap, version)
            self.ids[version].append(part)
        self.size += len(ids)
        self.newest = int(ids[-1])

    def rows_below(self, columns: Columns, version: int) -> Rows:
        """Live rows of versions below this one; versions of which nothing lives any more are forgotten."""
        found, kept = [], []
        while self.heap and self.heap[0] < version:
            key = heapq.heappop(self.heap)
            ids = np.concatenate(self.ids[key])
            rows = columns.rows_of(ids)
            rows = rows[rows >= 0]
            if len(rows):
                found.append(rows)
                kept.append(key)
            else:
                del self.ids[key]
                self.size -= len(ids)
        for key in kept:
            heapq.heappush(self.heap, key)
        return np.sort(np.concatenate(found)) if found else NONE


@dataclass(frozen=True, slots=True)
class MaxStaleness:
    """Rows leave when their oldest token is more than `n` train steps old: age n stays, n + 1 goes.

    Versions may come in any order. Amortized O(1) a rollout and O(log V) a version, of V held.
    """

    n: int
    _versions: _Versions = field(default_factory=_Versions, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_whole("max_staleness", self.n, least=0))

    def expired(self, columns: Columns, touched: Rows | None) -> Rows:
        self._versions.catch_up(columns)
        return self._versions.rows_below(columns, columns.train_step - self.n)

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Newcomers are noted; nothing else matters, the weights that produced a rollout are a fact."""
        self._versions.catch_up(columns)

    def rebuilt(self, columns: Columns) -> None:
        """Everything may be different: look at all of it when asked."""
        self._versions.forget()


@dataclass(slots=True)
class _Prompts:
    """The newest rollout ids of each prompt."""

    ids: dict[int, Rows] = field(default_factory=dict)
    size: int = 0
    newest: int = -1


@dataclass(frozen=True, slots=True)
class NewestPerPrompt:
    """Each prompt keeps its newest `n` rollouts (RePO, arXiv 2506.09340: a deque of 16 a prompt).

    O(n + g) for a group of g that arrives.
    """

    n: int
    _prompts: _Prompts = field(default_factory=_Prompts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_whole("rollouts kept per prompt", self.n, least=1))

    def expired(self, columns: Columns, touched: Rows | None) -> Rows:
        known = self._prompts
        if outgrown(known.size, len(columns)):
            self.rebuilt(columns)
        rows = arrivals(columns, known.newest)
        if not len(rows):
            return NONE
        ids = columns["rollout_id"][rows]
        known.newest = int(ids[-1])
        over = [self._admit(columns, prompt, part) for prompt, part in grouped(columns["prompt_id"][rows], ids)]
        return np.sort(np.concatenate(over))

    def _admit(self, columns: Columns, prompt: int, new: Rows) -> Rows:
        """Note new ids of a prompt; returns the rows that are too many."""
        known = self._prompts
        before = known.ids.get(prompt, NONE)
        ids, over = np.concatenate([before, new]), NONE
        if len(ids) > self.n:  # some of them may have left in another way
            rows = columns.rows_of(ids)
            over = rows[rows >= 0][: -self.n]
            ids = ids[rows >= 0][-self.n :]
        known.ids[prompt] = ids
        known.size += len(ids) - len(before)
        return over

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Nothing to do: newcomers are noticed by their ids, and those that left when their prompt is full."""

    def rebuilt(self, columns: Columns) -> None:
        """Everything may be different: look at all of it when asked."""
        self._prompts.ids, self._prompts.size, self._prompts.newest = {}, 0, -1
