"""All new rollouts, plus a replayed share of older ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.plain import Uniform
from ostinato.buffer.sampling.protocol import (
    Picked,
    Rows,
    Sampler,
    load_states,
    new_priority_of,
    picked,
    size_given,
    states_of,
    tell_changed,
    tell_rebuilt,
)
from ostinato.buffer.sampling.quotas import joined
from ostinato.buffer.sampling.rowset import RowSet, Subset
from ostinato.buffer.settings import check_sampler
from ostinato.errors import DataError
from ostinato.setting_checks import check_not_negative, check_whole


class FreshAnchored:
    """Every rollout never drawn before, oldest first, then replayed ones (arXiv 2606.04560).

    With n None the batch is the F fresh rollouts and round(ratio * F) replayed ones, fewer when fewer can be had. With
    a given n fresh ones come first (n of them at random when there are more) and replay fills up to exactly n.
    `replay` draws among rollouts already used; default: uniformly without replacement. Nothing is replayed up to and
    including train step `warmup` (0: no warm-up). Importance weights of fresh rollouts are 1.
    Raises `ConfigError` for a negative ratio or warm-up, `DataError` when nothing is fresh (n None) or n cannot be had.
    """

    decides_size = True

    def __init__(self, replay: Sampler | None = None, ratio: float = 0.5, warmup: int = 0) -> None:
        self.ratio = check_not_negative("ratio of replayed to fresh rollouts", ratio)
        self.warmup = check_whole("warmup", warmup, least=0)
        self.replay: Sampler = Uniform(replacement=False) if replay is None else replay
        check_sampler("replay", self.replay)
        self._fresh, self._used = RowSet(), RowSet()

    @property
    def repeats(self) -> bool:
        return self.replay.repeats

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Picked:
        fresh = len(self._fresh)
        if n is None:
            if not fresh:
                raise DataError(
                    f"FreshAnchored: none of the {len(columns)} rollouts held is new; ask for n or add first"
                )
            ranks, wanted = np.arange(fresh), round(self.ratio * fresh)
            replayed = min(wanted, self._available(columns, wanted))
        elif (size := size_given(self, n)) <= fresh:
            ranks, replayed = np.sort(rng.choice(fresh, size, replace=False)), 0
        else:
            ranks, replayed = np.arange(fresh), size - fresh
            self._check(columns, size)
        parts = [Picked(self._fresh.select(ranks))]
        if replayed:
            parts.append(picked(self.replay(Subset(columns, self._used), replayed, rng)))
        return joined(parts, np.arange(len(ranks) + replayed))

    def rebuilt(self, columns: Columns) -> None:
        """Row numbers changed, or everything did."""
        fresh = columns["uses"] == 0
        self._fresh.rebuilt(columns.alive & fresh)
        self._used.rebuilt(columns.alive & ~fresh)
        tell_rebuilt(self.replay, Subset(columns, self._used))

    def changed(self, columns: Columns, rows: Rows) -> None:
        """These rows were appended, removed, drawn or written."""
        alive, fresh = columns.alive[rows], columns["uses"][rows] == 0
        self._fresh.assign(columns.span, rows, alive & fresh)
        self._used.assign(columns.span, rows, alive & ~fresh)
        tell_changed(self.replay, Subset(columns, self._used), rows)

    def new_priority(self, columns: Columns) -> float:
        """As the replay sampler says."""
        return new_priority_of([self.replay], columns)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """State of the replay sampler."""
        return states_of({"replay": self.replay})

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state_arrays`."""
        load_states({"replay": self.replay}, arrays)

    def _warm(self, columns: Columns) -> bool:
        return not self.warmup or columns.train_step > self.warmup

    def _available(self, columns: Columns, wanted: int) -> int:
        """How many rollouts replay could give now; any number when it repeats."""
        if not self._warm(columns):
            return 0
        used = len(self._used)
        return max(used, wanted) if self.replay.repeats and used else used

    def _check(self, columns: Columns, n: int) -> None:
        fresh, available = len(self._fresh), self._available(columns, n)
        if fresh + available < n:
            why = "" if self._warm(columns) else f", none of which is replayed up to train step {self.warmup}"
            raise DataError(f"FreshAnchored cannot draw {n}: {fresh} rollouts are new and {len(self._used)} used{why}")
