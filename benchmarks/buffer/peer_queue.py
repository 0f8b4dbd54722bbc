"""How TRL's asynchronous GRPO hands rollouts over: one pickled record each through `multiprocessing.Queue`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batches import WrongBatchError
from .profiles import Record, Source

IN_FLIGHT = 1024


@dataclass(slots=True)
class RolloutSample:
    """The array fields and numbers of TRL's record of that name: token ids and mask as int64."""

    input_ids: NDArray[np.int64]
    completion_mask: NDArray[np.int64]
    old_log_probs: NDArray[np.float32]
    advantage: float
    model_version: int
    group_id: int
    uid: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def sample_of(record: Record) -> RolloutSample:
    """TRL's form of a record."""
    return RolloutSample(
        np.asarray(record["tokens"], np.int64),
        np.asarray(record["mask"], np.int64),
        record["logprobs"].copy(),
        record["advantage"],
        record["version"],
        record["group"],
        record["uid"],
        {"reward": record["reward"]},
    )


class Queue:
    """A producer that puts ready-made records as fast as the queue takes them, and a consumer that takes them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._queue: Any = multiprocessing.get_context("fork").Queue(IN_FLIGHT)

    def produce(self, stop: Any, count: Any) -> None:
        """Until `stop` is set."""
        samples = [sample_of(record) for group in islice(self._source.groups(), 64) for record in group]
        for sample in cycle(samples):
            if stop.is_set():
                break
            self._queue.put(sample)
            count.value += 1
        self._queue.cancel_join_thread()  # what is in flight is lost, as on any restart

    def consume(self) -> int:
        """Take one rollout; returns how many came."""
        self.last: RolloutSample = self._queue.get()
        return 1

    def check(self) -> None:
        """Raises `WrongBatchError` unless the last one is what was put in."""
        record = self._source.record(self.last.uid)
        for got, name in (("input_ids", "tokens"), ("completion_mask", "mask"), ("old_log_probs", "logprobs")):
            if not np.array_equal(getattr(self.last, got), record[name]):
                raise WrongBatchError(f"multiprocessing.Queue: {name} differ")

    def close(self) -> None:
        """Nothing is left."""
