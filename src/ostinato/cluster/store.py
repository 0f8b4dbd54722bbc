"""A store whose rollouts lie in other processes: one buffer there, or T shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayTaskError

from ostinato.buffer.shards import joined_metrics
from ostinato.cluster.actors import GROUP
from ostinato.cluster.failures import DEATHS, TOO_SLOW, raised, reason_of
from ostinato.cluster.holders import DrawElsewhere, drawn_elsewhere
from ostinato.config import RunConfig
from ostinato.errors import CheckpointError, StateLostError
from ostinato.rollouts import Rollouts

Int = NDArray[np.int64]


class RemoteStore:
    """A `protocols.Store` in the actors `holders`, dealt out and drawn from as `ShardedBuffer` does.

    A draw is a `DrawElsewhere`. Raises `StateLostError` when a holder dies.
    """

    def __init__(self, holders: Sequence[Any], config: RunConfig) -> None:
        self._holders, self._limit_s = list(holders), config.ray.train_timeout_s
        self._next = 0
        self._get([one.hold.options(**_ALONGSIDE).remote(config, i) for i, one in enumerate(self._holders)])

    def __len__(self) -> int:
        return sum(self._get([one.size.options(**_ALONGSIDE).remote() for one in self._holders]))

    def add(self, rollouts: Rollouts, *, train_step: int) -> Int:
        """Deal the rollouts out one by one, going on where the last call stopped; their ids, int64 (n,)."""
        owner = (self._next + np.arange(len(rollouts))) % len(self._holders)
        rows = [np.flatnonzero(owner == index) for index in range(len(self._holders))]
        parts = [rollouts] if len(rows) == 1 else [rollouts.select(own) for own in rows]
        ids = np.empty(len(rollouts), np.int64)
        for own, given in zip(rows, self._each("add", [(part,) for part in parts], train_step=train_step), strict=True):
            ids[own] = given
        self._next = int((self._next + len(rollouts)) % len(self._holders))
        return ids

    def can_add(self, n: int) -> bool:
        """Whether every holder lets its part in."""
        return all(self._every("can_add", -(-n // len(self._holders))))

    def can_sample(self, n: int) -> bool:
        """Whether every holder lets its part out."""
        return all(self._every("can_sample", n // len(self._holders)))

    def sample(self, n: int, *, train_step: int, rng: np.random.Generator) -> DrawElsewhere:
        """n / T rollouts from each holder, each with a seed drawn from `rng`; their payload stays where it is."""
        seeds = rng.integers(2**62, size=len(self._holders)).tolist()
        part = n // len(self._holders)
        refs = [
            one.draw.options(num_returns=2, **_ALONGSIDE).remote(part, train_step, seed)
            for one, seed in zip(self._holders, seeds, strict=True)
        ]
        return drawn_elsewhere(self._get([told for told, _ in refs]), tuple(payload for _, payload in refs))

    def retain(self, *, train_step: int) -> None:
        """Apply the retention rules of every holder."""
        self._every("retain", train_step=train_step)

    def remove(self, rollout_ids: Int) -> int:
        """Remove rollouts by id, each at its own holder; how many were there."""
        return sum(self._each("remove", [(rollout_ids[own],) for own in self._routed(rollout_ids)]))

    def update_priorities(self, rollout_ids: Int, priorities: NDArray[np.float64]) -> int:
        """Write priorities back by id, each at its own holder; how many landed."""
        parts = [(rollout_ids[own], priorities[own]) for own in self._routed(rollout_ids)]
        return sum(self._each("update_priorities", parts))

    def metrics(self) -> dict[str, float]:
        """Those of the holder, or of all shards together."""
        parts = self._every("metrics")
        return parts[0] if len(parts) == 1 else joined_metrics(parts)

    def departures(self) -> Int:
        """Uses of the rollouts that left any holder since the last call."""
        return np.concatenate(self._every("departures"))

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """As the store would have them in one process."""
        states = self._every("state_arrays")
        if len(states) == 1:
            return dict(states[0])
        arrays = {f"{i}/{name}": array for i, state in enumerate(states) for name, array in state.items()}
        return {"next_shard": np.array(self._next), **arrays}

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state_arrays`. Raises `CheckpointError` for another number of shards."""
        saved = {name.partition("/")[0] for name in arrays if "/" in name}
        expected = len(self._holders) if len(self._holders) > 1 else 0
        if len(saved) != expected:
            raise CheckpointError(f"buffer state of {len(saved)} shards, expected {expected}: lay it out as it was")
        if not expected:
            self._every("load_state_arrays", dict(arrays))
            return
        own = [
            {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{i}/")}
            for i in range(len(self._holders))
        ]
        self._each("load_state_arrays", [(state,) for state in own])
        self._next = int(arrays["next_shard"])

    def _routed(self, ids: Int) -> list[Int]:
        return [np.flatnonzero(ids % len(self._holders) == index) for index in range(len(self._holders))]

    def _every(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        return self._each(method, [arguments] * len(self._holders), **named)

    def _each(self, method: str, arguments: Sequence[tuple[Any, ...]], **named: Any) -> list[Any]:
        return self._get(
            [
                one.ask.options(**_ALONGSIDE).remote(method, *own, **named)
                for one, own in zip(self._holders, arguments, strict=True)
            ]
        )

    def _get(self, calls: list[ray.ObjectRef[Any]]) -> list[Any]:
        try:
            return list(ray.get(calls, timeout=self._limit_s))
        except RayTaskError as error:
            raise raised(error, "the buffer's process") from None
        except TOO_SLOW:
            raise StateLostError(f"the buffer's process did not answer within {self._limit_s:g} s") from None
        except DEATHS as error:
            raise StateLostError(f"the buffer's process is lost: {reason_of(error)}") from error


_ALONGSIDE = {"concurrency_group": GROUP}
