"""What is drawn from a buffer that was closed: each rollout that never was, once, whatever its sampler does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import MinSize, Newest, ReplayBuffer
from ostinato.buffer.columns import Columns
from ostinato.sharing.failures import EndOfStream

T = TypeVar("T")


def take_rest(
    buffer: ReplayBuffer, n: int | None, train_step: int, take: Callable[[int | None, int], T], *, hand_out: bool
) -> T:
    """`take` a batch of n, the last one shorter, of what has never been drawn. Raises `EndOfStream` when nothing is.

    `hand_out=False`: nothing is handed out, whatever is left.
    """
    buffer.retain(train_step=train_step)
    left = int(np.count_nonzero(buffer.columns["uses"] == 0))
    if not (hand_out and left):
        raise EndOfStream(f"the buffer is closed and nothing is left to draw; {len(buffer)} rollouts are kept in it")
    sampler, limiter = buffer.sampler, buffer.limiter
    buffer.sampler, buffer.limiter = _NeverDrawn(isinstance(sampler, Newest)), MinSize(1)
    try:
        return take(left if n is None else min(n, left), train_step)
    finally:
        buffer.sampler, buffer.limiter = sampler, limiter


class _NeverDrawn:
    """Rows that have never been drawn, each once; oldest first, or newest first."""

    repeats = False

    def __init__(self, newest_first: bool) -> None:
        self._newest_first = newest_first

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
        rows = columns.live()
        rows = rows[columns["uses"][rows] == 0]
        return np.asarray((rows[::-1] if self._newest_first else rows)[:n])
