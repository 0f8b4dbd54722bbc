"""The queue that TRL's asynchronous trainer drains: every item comes out of a replay buffer, and may come again."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from ostinato.buffer import ReplayBuffer
from ostinato.integrations.trl.async_samples import rollouts_of, sample_of
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts

METRICS_HELD = 4096
"""Metrics that wait for the trainer's next log at most; further ones are dropped."""


class ReplayQueue:
    """`get`, `put_nowait` and `qsize` of a queue, between a worker's queue and the trainer.

    A `get` first takes in all that has arrived, then hands out the next rollout of a batch drawn from `buffer`; a new
    batch of `batch_size` is drawn when the last one is used up. Nothing is handed out that is more than
    `max_staleness` model versions old at that moment. Where no batch can be drawn it waits for arrivals as any queue
    does, and raises `queue.Empty` in the end.

    `check()` is asked before every draw and raises when nobody will bring new rollouts any more. Not thread-safe: TRL
    calls it from the trainer's thread alone.
    """

    def __init__(
        self,
        inner: Any,
        buffer: ReplayBuffer,
        *,
        batch_size: int,
        max_staleness: int,
        group_size: int,
        keep_messages: bool,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> None:
        self.inner, self.buffer, self.rng = inner, buffer, rng
        self.metrics: queue.Queue[dict[str, float | tuple[float, float]]] = queue.Queue(METRICS_HELD)
        self.version = 0
        self.version_shift = self.group_shift = 0
        self.pending: Rollouts | None = None
        self.too_old = 0
        self._next = 0
        self.batch_size, self.max_staleness, self._group_size = batch_size, max_staleness, group_size
        self._keep_messages, self._check = keep_messages, check
        self._began = time.time()
        self._told: dict[str, float] = {}
        self.groups = ArrivedGroups()

    # ---------------------------------------------------------------- what TRL calls

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next rollout as TRL's `RolloutSample`. Raises `queue.Empty` when none comes in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._take_in()
            sample = self._hand_out()
            if sample is not None:
                return sample
            left = None if deadline is None else deadline - time.monotonic()
            if not block or (left is not None and left <= 0):
                raise queue.Empty
            self._admit([self.inner.get(timeout=left)])

    def get_nowait(self) -> Any:
        """`get` that does not wait."""
        return self.get(block=False)

    def put_nowait(self, sample: Any) -> None:
        """Put a sample into the worker's own queue."""
        self.inner.put_nowait(sample)

    def qsize(self) -> int:
        """Rollouts that can be handed out without a new arrival: held ones and the rest of the batch."""
        return len(self.buffer) + (0 if self.pending is None else len(self.pending) - self._next)

    # ---------------------------------------------------------------- what the worker and checkpoints call

    def set_version(self, version: int) -> None:
        """These weights are live: what is too old by now leaves. `version` as the trainer counts."""
        self.version = version + self.version_shift
        self.buffer.retain(train_step=self.version)

    def rest(self) -> Rollouts | None:
        """What was drawn and not yet handed out."""
        if self.pending is None or self._next == len(self.pending):
            return None
        return self.pending.select(np.arange(self._next, len(self.pending)))

    def resume(self, rest: Rollouts | None, *, version_shift: int, group_shift: int) -> None:
        """Go on with a loaded buffer: `rest` first; versions and groups are counted on from where they were."""
        self.pending, self._next = rest, 0
        self.version_shift, self.group_shift = version_shift, group_shift
        self.version = self.buffer.train_step
        self.groups = ArrivedGroups()
        self._told = self._counters()

    # ---------------------------------------------------------------- inside

    def _take_in(self) -> None:
        arrived: list[Any] = []
        while self.buffer.can_add(len(arrived) + 1):
            try:
                arrived.append(self.inner.get_nowait())
            except queue.Empty:
                break
            if len(arrived) == self.batch_size:
                self._admit(arrived)
                arrived = []
        if arrived:
            self._admit(arrived)

    def _admit(self, samples: list[Any]) -> None:
        rollouts = rollouts_of(
            samples,
            version_shift=self.version_shift,
            group_shift=self.group_shift,
            keep_messages=self._keep_messages,
            group_size=self._group_size,
        )
        self.buffer.add(rollouts, train_step=self.version)
        self.buffer.retain(train_step=self.version)
        self.groups.note(sample.group_id for sample in samples)

    def _hand_out(self) -> Any:
        while True:
            if self.pending is None or self._next == len(self.pending):
                self.pending = None
                self._check()
                if not self.buffer.can_sample(self.batch_size):
                    return None
                self._draw()
            batch, index = self.pending, self._next
            assert batch is not None
            self._next += 1
            if self.version - batch.policy_version_min[index] > self.max_staleness:
                self.too_old += 1  # drawn before the weights moved on
                continue
            return sample_of(batch, index, version_shift=self.version_shift, enqueued_after=self._began)

    def _draw(self) -> None:
        draw = self.buffer.sample(self.batch_size, train_step=self.version, rng=self.rng)
        # Members of a group one after the other: TRL packs them into one row, which forwards their prompt once.
        order = np.argsort(draw.rollouts.group_id, kind="stable")
        self.pending, self._next = draw.rollouts.select(order), 0
        with suppress(queue.Full):
            self.metrics.put_nowait(self._numbers(draw))

    def _counters(self) -> dict[str, float]:
        held = self.buffer.metrics()
        return {
            "replay/admitted_total": held["admitted"],
            "replay/refused_total": sum(value for key, value in held.items() if key.startswith("refused.")),
            "replay/expired_total": held.get("expired.MaxStaleness", 0.0) + self.too_old,
            "replay/left_unused_total": held["left"] * held.get("left_unused_fraction", 0.0),
        }

    def _numbers(self, draw: Draw) -> dict[str, float | tuple[float, float]]:
        """By the rules of TRL's log: words `total` add up, `max` is the largest, pairs are a rate, the rest a mean."""
        counters, n = self._counters(), len(draw)
        steps = {key: value - self._told.get(key, 0.0) for key, value in counters.items()}
        self._told = counters
        return {
            **steps,
            "replay/drawn_total": float(n),
            "replay/size": float(len(self.buffer)),
            "replay/bytes": float(self.buffer.nbytes),
            "replay/uses_mean": float(draw.uses.mean()) + 1,
            "replay/staleness_mean": float(draw.staleness.mean()),
            "replay/staleness_max": float(draw.staleness.max()),
            "replay/new_fraction": (float(np.sum(draw.uses == 0)), float(n)),
        }


class ArrivedGroups:
    """Which of the groups that a worker numbers from 0 have arrived whole: `first_missing`, and those beyond it.

    A worker hands a group's samples over one after the other, and nobody knows how many they are (a conversation that
    forks gives several), so a group is whole when the next one begins.
    """

    def __init__(self) -> None:
        self.first_missing = 0
        self.largest = -1
        self._beyond: set[int] = set()
        self._last = -1

    def note(self, group_ids: Iterable[int]) -> None:
        """A sample of each of these groups is here, in this order."""
        for group in group_ids:
            if group != self._last:
                self._whole(self._last)
                self._last, self.largest = group, max(self.largest, group)

    def _whole(self, group: int) -> None:
        if group >= self.first_missing:
            self._beyond.add(group)
        while self.first_missing in self._beyond:
            self._beyond.remove(self.first_missing)
            self.first_missing += 1
