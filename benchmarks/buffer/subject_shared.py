"""ostinato's shared ring as a contestant: a producing and a drawing process."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

import numpy as np

from ostinato.protocols import Draw
from ostinato.sharing import SharedProducer, SharedReader, shared_directory
from ostinato.sharing.directory import MAX_RINGS

from .batches import Rows, verify
from .profiles import GROUP_SIZE, Source
from .subject import TRAIN_STEP, Ostinato

BATCH = 60
READY = 64  # groups that take turns


class SharedOstinato:
    """A ring of as many rollouts as the source has; groups are ready-made, draws are of 60 with replacement."""

    def __init__(self, source: Source) -> None:
        self._source = source
        converter = Ostinato(1)
        self._ready = [converter.convert(records) for records in islice(source.groups(), READY)]
        self._open = shared_directory()
        self._directory = self._open.__enter__()
        self._reader: SharedReader | None = None
        self._rng = np.random.default_rng(0)
        self._last: Draw | None = None

    def produce(self, stop: Any, count: Any) -> None:
        """Until `stop` is set."""
        n = len(self._source)
        with SharedProducer(
            self._directory, "p", capacity=n, capacity_bytes=self._source.payload_bytes * 9 // 8
        ) as ring:
            for rollouts in cycle(self._ready):
                if stop.is_set():
                    return
                ring.add(rollouts, train_step=TRAIN_STEP)
                count.value += len(rollouts)

    def consume(self) -> int:
        """A batch of 60."""
        self._reader = self._reader or SharedReader(self._directory)
        self._last = self._reader.sample(BATCH, train_step=TRAIN_STEP, rng=self._rng)
        return BATCH

    def check(self) -> None:
        """The last batch."""
        assert self._last is not None
        drawn = self._last.rollouts
        uid = self._last.rollout_ids // MAX_RINGS % (READY * GROUP_SIZE)
        rows = Rows(drawn.tokens, drawn.loss_mask, drawn.behavior_logprobs, drawn.lengths, uid)
        verify("ostinato.sharing", rows, self._source, BATCH)

    def close(self) -> None:
        """Remove the directory."""
        if self._reader is not None:
            self._reader.close()
        self._open.__exit__(None, None, None)
