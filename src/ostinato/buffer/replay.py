"""`ReplayBuffer`: sampler x retention x limiter x capacity. The only place where a buffer changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.limits import Limiter, MinSize
from ostinato.buffer.payload import empty_table, joined, split, table_arrays, table_of
from ostinato.buffer.retention import Retention
from ostinato.buffer.sampling import Sampler, Uniform
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.protocols import Draw
from ostinato.ragged import row_numbers
from ostinato.rollouts import Rollouts, concatenate, extra_layouts
from ostinato.staleness import residence, staleness


class ReplayBuffer:
    """Keeps rollouts and draws them again.

    `capacity`: rollouts held at most; beyond it the oldest leave. `sampler`: which rows a draw takes. `retention`:
    rules whose verdicts are combined (a row stays when all keep it). `limiter`: who must wait. Rollouts are copied in
    and out. `first_id` and `id_stride` number the rollouts (shards use one residue each).
    Raises `ConfigError` for a capacity below 1, `DataError` when misused: inserting past the limiter or more than the
    capacity, drawing more than is there, extra columns that differ from those held, train steps that fall. A refused
    `add` changes nothing.
    """

    def __init__(
        self,
        capacity: int,
        *,
        sampler: Sampler | None = None,
        retention: Sequence[Retention] = (),
        limiter: Limiter | None = None,
        first_id: int = 0,
        id_stride: int = 1,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity must be at least 1 rollout, got {capacity}")
        if first_id < 0 or id_stride < 1:
            raise ConfigError(f"rollout ids must rise from 0 or more, got first_id {first_id}, id_stride {id_stride}")
        self.capacity = capacity
        self.sampler: Sampler = sampler or Uniform()
        self.retention = tuple(retention)
        self.limiter: Limiter = limiter or MinSize()
        self._first_id, self._id_stride = first_id, id_stride
        self._table = empty_table({})
        self._added = 0
        self._train_step = 0
        self._departed: list[NDArray[np.int64]] = []

    def __len__(self) -> int:
        return len(self._table)

    @property
    def columns(self) -> Columns:
        """Read-only columns of what is held, oldest first."""
        return Columns(self._table)

    @property
    def added(self) -> int:
        """Rollouts inserted since the beginning."""
        return self._added

    def can_add(self, n: int) -> bool:
        """Whether the limiter lets n rollouts in now."""
        return self.limiter.can_add(n, size=len(self), capacity=self.capacity)

    def can_sample(self, n: int) -> bool:
        """Whether the limiter lets a batch of n >= 1 out now, and a sampler that never repeats a row finds enough."""
        enough = n >= 1 and len(self) >= (1 if self.sampler.repeats else n)
        return enough and self.limiter.can_sample(n, size=len(self))

    def check_add(self, rollouts: Rollouts, *, train_step: int) -> None:
        """Raise the `DataError` that `add` would raise."""
        n = len(rollouts)
        if not self.can_add(n):
            raise DataError(f"the queue holds {len(self)} of {self.capacity}: {n} more do not fit; ask can_add first")
        if n > self.capacity:
            raise DataError(f"{n} rollouts at once do not fit in a buffer of capacity {self.capacity}")
        self._check_step(train_step)
        newest = int(rollouts.policy_version_min.max(initial=train_step))
        if newest > train_step:
            raise DataError(f"policy_version_min {newest} at train step {train_step}: rollouts come from the past")
        given = extra_layouts(rollouts)
        if len(self) and given != self._table.extras:
            raise DataError(f"extra columns {given} differ from those already held, {self._table.extras}")

    def add(self, rollouts: Rollouts, *, train_step: int) -> NDArray[np.int64]:
        """Copy rollouts in at this train step; returns their rollout ids, int64 (n,)."""
        self.check_add(rollouts, train_step=train_step)
        n = len(rollouts)
        ids = self._first_id + self._id_stride * (self._added + np.arange(n))
        book = {
            "rollout_id": ids,
            "insert_step": np.full(n, train_step),
            "uses": np.zeros(n, np.int64),
            "last_use_step": np.full(n, -1),
        }
        rows = book | split(rollouts)
        self._train_step = train_step
        if extra_layouts(rollouts) != self._table.extras:  # let through by check_add because no row is held
            self._table = empty_table(extra_layouts(rollouts))
        self._drop_oldest(len(self) + n - self.capacity)
        self._table.append(n, rows)
        self._added += n
        return ids

    def sample(self, n: int, *, train_step: int, rng: np.random.Generator) -> Draw:
        """Draw a batch of exactly n >= 1 at this train step; rows too old by now are dropped first, never drawn."""
        if n < 1:
            raise DataError(f"cannot draw {n} rollouts, expected at least 1")
        self.retain(train_step=train_step)
        if not self.can_sample(n):
            raise DataError(f"cannot draw {n} from the {len(self)} rollouts held; ask can_sample first")
        rows = row_numbers(self.sampler(self.columns, n, rng), len(self))
        draw = self._draw(rows, train_step)
        np.add.at(self._table["uses"], rows, 1)
        self._table["last_use_step"][rows] = train_step
        self.retain(train_step=train_step)
        return draw

    def retain(self, *, train_step: int) -> None:
        """Remove the rows that a retention rule no longer keeps at this train step."""
        self._check_step(train_step)
        self._train_step = train_step
        if not self.retention or not len(self):
            return
        keep = np.logical_and.reduce([rule(self.columns, train_step) for rule in self.retention])
        if not keep.all():
            self._departed.append(self._table["uses"][~keep].copy())
            self._table.keep(keep)

    def departures(self) -> NDArray[np.int64]:
        """Uses of the rollouts that left since the last call: int64."""
        left = np.concatenate(self._departed) if self._departed else np.empty(0, np.int64)
        self._departed = []
        return left

    def metrics(self) -> dict[str, float]:
        """Fill and the share of rollouts not drawn yet."""
        never = float(np.mean(self._table["uses"] == 0)) if len(self) else 0.0
        return {"size": float(len(self)), "fill": len(self) / self.capacity, "never_used_fraction": never}

    def check(self) -> None:
        """Raise `DataError` when an invariant is broken."""
        if len(self) > self.capacity:
            raise DataError(f"holds {len(self)} rollouts, capacity is {self.capacity}")
        if np.any(np.diff(self._table["rollout_id"]) <= 0):
            raise DataError("rollout ids do not rise")

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Contents, book-keeping and counters as plain arrays for `numpy.savez`."""
        counters = np.array([self._added, self._first_id, self._id_stride])
        departed = np.concatenate([np.empty(0, np.int64), *self._departed])
        return table_arrays(self._table) | {"counters": counters, "departed": departed}

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state_arrays` gave, keeping the newest `capacity`. Raises `CheckpointError`."""
        try:
            added, first_id, id_stride = (int(value) for value in arrays["counters"])
            departed = np.array(arrays["departed"], np.int64)
            table = table_of(arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"buffer state is incomplete: {error}") from error
        self._added, self._first_id, self._id_stride = added, first_id, id_stride
        self._table, self._departed = table, [departed]
        self._train_step = max(0, *(int(table[name].max(initial=0)) for name in ("insert_step", "last_use_step")))
        self._drop_oldest(len(self) - self.capacity)

    def _check_step(self, train_step: int) -> None:
        if train_step < self._train_step:
            raise DataError(f"train step {train_step} comes after train step {self._train_step}: steps must not fall")

    def _drop_oldest(self, n: int) -> None:
        if n > 0:
            self._departed.append(self._table["uses"][:n].copy())
            self._table.drop_oldest(n)

    def _draw(self, rows: NDArray[np.int64], train_step: int) -> Draw:
        repeat = _occurrence(rows)
        last = self._table["last_use_step"][rows]
        since = np.where(repeat > 0, 0, np.where(last < 0, -1, train_step - last))
        rollouts = joined(self._table, rows)
        return Draw(
            rollouts=rollouts,
            rollout_ids=self._table["rollout_id"][rows],
            importance_weights=np.ones(len(rows)),
            staleness=staleness(train_step, rollouts.policy_version_min),
            residence=residence(train_step, self._table["insert_step"][rows]),
            uses=self._table["uses"][rows] + repeat,
            steps_since_last_use=since,
        )


def _occurrence(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each entry appeared before in `rows`: [5, 3, 5] -> [0, 0, 1]."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))
    result = np.empty(len(rows), np.int64)
    result[order] = np.arange(len(rows)) - start
    return result


def join_draws(draws: Sequence[Draw]) -> Draw:
    """One batch out of the draws of several shards, in order."""
    if len(draws) == 1:
        return draws[0]
    arrays = {
        name: np.concatenate([getattr(draw, name) for draw in draws])
        for name in ("rollout_ids", "importance_weights", "staleness", "residence", "uses", "steps_since_last_use")
    }
    return Draw(rollouts=concatenate([draw.rollouts for draw in draws]), **arrays)
