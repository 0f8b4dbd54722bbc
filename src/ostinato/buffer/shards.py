"""T shards of one buffer: each trainer owns N/T rollouts and draws B/T, as in arXiv 2604.08706, section 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.checks import check_count, check_ids, check_priorities, check_rollouts, check_step, checked_limiter
from ostinato.buffer.draws import check_generator, join_draws
from ostinato.buffer.limits import Limiter
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.state import checked_arrays, install
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.protocols import Draw
from ostinato.ragged import check_offsets
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import MOST, check_whole

MEANS = ("never_used_fraction", "staleness", "correct_fraction", "informative_fraction")
"""Metrics of a shard that are means over what it holds."""


class ShardedBuffer:
    """Hands each new rollout to exactly one shard, in turn, and draws an equal part of a batch from every shard."""

    def __init__(self, shards: Sequence[ReplayBuffer]) -> None:
        self.shards = tuple(shards)
        if not self.shards:
            raise ConfigError("a sharded buffer needs at least one shard")
        for one, other in combinations(self.shards, 2):
            if (one._first_id - other._first_id) % gcd(one._id_stride, other._id_stride) == 0:
                raise ConfigError(
                    f"two shards give the same ids: first_id {one._first_id} and {other._first_id}, id_stride "
                    f"{one._id_stride} and {other._id_stride}; shard i of T has first_id=i, id_stride=T"
                )
        self._next = 0

    def __len__(self) -> int:
        return sum(len(shard) for shard in self.shards)

    def can_add(self, n: int) -> bool:
        """Whether every shard lets its part in."""
        n = check_count("n", n, -MOST)
        return all(shard.can_add(-(-n // len(self.shards))) for shard in self.shards)

    def can_sample(self, n: int) -> bool:
        """Whether every shard lets its part out."""
        n = check_count("n", n, -MOST)
        return all(shard.can_sample(n // len(self.shards)) for shard in self.shards)

    def add(self, rollouts: Rollouts, *, train_step: int) -> NDArray[np.int64]:
        """Deal the rollouts out one by one, going on where the last call stopped; returns their ids, int64 (n,)."""
        check_rollouts(rollouts)
        check_offsets(rollouts.offsets, len(rollouts.tokens))
        owner = (self._next + np.arange(len(rollouts))) % len(self.shards)
        ids = np.empty(len(rollouts), np.int64)
        rows = [np.flatnonzero(owner == index) for index in range(len(self.shards))]
        parts = [rollouts.select(part) for part in rows]
        for shard, part in zip(self.shards, parts, strict=True):
            shard.check_add(part, train_step=train_step)
        for shard, part, own in zip(self.shards, parts, rows, strict=True):
            ids[own] = shard.add(part, train_step=train_step)
        self._next = int((self._next + len(rollouts)) % len(self.shards))
        return ids

    def sample(self, n: int, *, train_step: int, rng: np.random.Generator) -> Draw:
        """n / T rollouts from each shard. Raises `DataError` when T does not divide n."""
        check_generator(rng)
        part, rest = divmod(n := check_count("n", n, -MOST), len(self.shards))
        if rest:
            raise DataError(f"{len(self.shards)} shards must divide the batch of {n}")
        self.retain(train_step=train_step)
        if not self.can_sample(n):
            raise DataError(f"cannot draw {n}: the shards hold {[len(shard) for shard in self.shards]} rollouts")
        return join_draws([shard.sample(part, train_step=train_step, rng=rng) for shard in self.shards])

    @property
    def capacity(self) -> int:
        """Rollouts held at most, by all shards."""
        return sum(shard.capacity for shard in self.shards)

    def resize(self, capacity: int) -> None:
        """Hold this much from now on, each shard an equal part; bounds in bytes stay. Raises `ConfigError`, changing
        nothing, when T does not divide it or a part cannot work."""
        part, rest = divmod(check_whole("capacity", capacity, least=1), len(self.shards))
        if rest:
            raise ConfigError(f"{len(self.shards)} shards must divide the capacity of {capacity}")
        for shard in self.shards:
            shard.limiter.check(check_whole("capacity of a shard", part, least=1))
        for shard in self.shards:
            shard.resize(part, shard.capacity_bytes)

    def limit(self, limiter: Limiter) -> None:
        """Let this limiter say of every shard who must wait. Raises `ConfigError`, changing nothing."""
        for shard in self.shards:
            checked_limiter(limiter).check(shard.capacity)
        for shard in self.shards:
            shard.limit(limiter)

    def retain(self, *, train_step: int) -> None:
        """Apply the retention rules of every shard."""
        for shard in self.shards:
            check_step(train_step, shard.train_step)
        for shard in self.shards:
            shard.retain(train_step=train_step)

    def remove(self, rollout_ids: Any) -> int:
        """Remove rollouts by id, each from its own shard; returns how many were there."""
        ids = check_ids(rollout_ids, "rollout_ids")
        return sum(shard.remove(ids[rows]) for shard, rows in self._routed(ids))

    def update_priorities(self, rollout_ids: Any, priorities: Any) -> int:
        """Write priorities back by id, each to its own shard; returns how many landed.

        Raises `DataError`, and changes nothing, for values that are not finite and >= 0.
        """
        ids = check_ids(rollout_ids, "rollout_ids")
        values = check_priorities(priorities, len(ids), ids)
        return sum(shard.update_priorities(ids[rows], values[rows]) for shard, rows in self._routed(ids))

    def metrics(self) -> dict[str, float]:
        """`size`, `bytes` and `allocated_bytes` of all shards, and the means of `MEANS` over all that they hold."""
        return joined_metrics([shard.metrics() for shard in self.shards])

    def departures(self) -> NDArray[np.int64]:
        """Uses of the rollouts that left any shard since the last call."""
        return np.concatenate([shard.departures() for shard in self.shards])

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of every shard, prefixed with its number."""
        arrays = {"next_shard": np.array(self._next)}
        for index, shard in enumerate(self.shards):
            arrays |= {f"{index}/{name}": array for name, array in shard.state_arrays().items()}
        return arrays

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state_arrays`, for the same number of shards.

        Raises `CheckpointError` and changes nothing when the arrays are incomplete or of another number of shards.
        """
        saved = {name.partition("/")[0] for name in arrays if "/" in name}
        if "next_shard" not in arrays or len(saved) != len(self.shards):
            raise CheckpointError(f"buffer state of {len(saved)} shards, expected {len(self.shards)} and next_shard")
        own = [{k.partition("/")[2]: v for k, v in arrays.items() if k.startswith(f"{i}/")} for i in range(len(saved))]
        checked = [checked_arrays(shard, part) for shard, part in zip(self.shards, own, strict=True)]
        for shard, state in zip(self.shards, checked, strict=True):
            install(shard, state)
        self._next = int(arrays["next_shard"])

    def _routed(self, ids: NDArray[np.int64]) -> Iterator[tuple[ReplayBuffer, NDArray[np.int64]]]:
        """Each shard, and the places of the ids that it gives."""
        for shard in self.shards:
            yield shard, np.flatnonzero((ids - shard._first_id) % shard._id_stride == 0)


def joined_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums of sizes and bytes over shards, and the means of `MEANS` over all that they hold."""
    sums = {name: sum(part[name] for part in parts) for name in ("size", "bytes", "allocated_bytes")}
    return sums | {name: sum(p[name] * p["size"] for p in parts) / max(sums["size"], 1) for name in MEANS}
