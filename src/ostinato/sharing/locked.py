"""A replay buffer that any number of threads may use at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import MinSize, Newest, ReplayBuffer
from ostinato.buffer.columns import Columns
from ostinato.buffer.workspace import Workspace
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts
from ostinato.sharing.crossing import Crossing, Done, Line
from ostinato.sharing.failures import BufferClosed, EndOfStream, WaitTimeout

T = TypeVar("T")
Steps = int | Callable[[], int]


class LockedBuffer:
    """The thread-safe face of a `ReplayBuffer`: one lock, and waiting where the limiter says so. A `protocols.Store`.

    Those who wait go in the order in which they came, adds and draws each in a line of their own. Train steps need not
    rise from call to call: an older one counts as the newest that the buffer has seen. The bare buffer must not be
    touched meanwhile, except inside `exclusively()`. Any number of `AsyncBuffer`s may stand beside it.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._crossing = Crossing()
        self._closed = False
        self._hand_out = True

    @contextmanager
    def exclusively(self) -> Iterator[ReplayBuffer]:
        """The buffer itself, nobody else in it: for write-back, saving, statistics, resizing."""
        with self._crossing.alone():
            yield self._buffer

    def add(self, rollouts: Rollouts, *, train_step: int, timeout_s: float | None = None) -> NDArray[np.int64]:
        """`ReplayBuffer.add`, once the limiter lets them in; waits at most `timeout_s` (None: as long as it takes).

        Raises `WaitTimeout`, `BufferClosed`, or `CircularWait` when the first draw in line waits for adds that this one
        holds up; also what the buffer raises. Then nothing was added.
        """
        return self._through(*self._adding(rollouts, train_step), timeout_s)

    def sample(
        self,
        n: int | None,
        *,
        train_step: int,
        rng: np.random.Generator,
        out: Workspace | None = None,
        timeout_s: float | None = None,
    ) -> Draw:
        """`ReplayBuffer.sample`, once the limiter lets a batch out; waits at most `timeout_s`.

        After `close()`: a batch, the last one shorter, of what has never been drawn; then `EndOfStream`.
        Raises `WaitTimeout` and `CircularWait` as `add`. Then nothing was taken.
        """
        return self._through(*self._drawing(n, train_step, rng, out), timeout_s)

    def batches(self, n: int, *, train_step: Steps, rng: np.random.Generator) -> Iterator[Draw]:
        """Draws until the end of the stream; `train_step`: a number, or what is asked before each draw."""
        while True:
            try:
                yield self.sample(n, train_step=train_step if isinstance(train_step, int) else train_step(), rng=rng)
            except EndOfStream:
                return

    def close(self, *, hand_out_rest: bool = True) -> None:
        """Refuse adds, those that wait too. Draws get what has never been drawn, each rollout once, then the end.

        With `hand_out_rest=False` they get the end at once, and everything stays in the buffer, for saving.
        """
        with self._crossing.alone():
            self._closed, self._hand_out = True, hand_out_rest

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __len__(self) -> int:
        with self._crossing.looking():
            return len(self._buffer)

    def can_add(self, n: int) -> bool:
        """Whether an add of n would go through now, without waiting."""
        with self._crossing.looking():
            return not self._closed and not self._crossing.adding.turns and self._buffer.can_add(n)

    def can_sample(self, n: int) -> bool:
        """Whether a draw of n would go through now, without waiting."""
        with self._crossing.looking():
            return not self._crossing.drawing.turns and self._buffer.can_sample(n)

    def retain(self, *, train_step: int) -> None:
        """See `ReplayBuffer.retain`."""
        with self.exclusively() as buffer:
            buffer.retain(train_step=self._step(train_step))

    def departures(self) -> NDArray[np.int64]:
        """See `ReplayBuffer.departures`."""
        with self.exclusively() as buffer:
            return buffer.departures()

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """See `ReplayBuffer.state_arrays`."""
        with self.exclusively() as buffer:
            return buffer.state_arrays()

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `ReplayBuffer.load_state_arrays`."""
        with self.exclusively() as buffer:
            buffer.load_state_arrays(arrays)

    def _step(self, train_step: int) -> int:
        return max(train_step, self._buffer.train_step)

    def _adding(
        self, rollouts: Rollouts, train_step: int
    ) -> tuple[Line, str, Callable[[], Done[NDArray[np.int64]] | None]]:
        """The line, what is wanted, and the attempt to get it."""

        def act() -> Done[NDArray[np.int64]] | None:
            if self._closed:
                raise BufferClosed(f"the buffer is closed: {len(rollouts)} rollouts were refused")
            if len(rollouts) <= self._buffer.capacity and not self._buffer.can_add(len(rollouts)):
                return None
            return Done(self._buffer.add(rollouts, train_step=self._step(train_step)))

        return self._crossing.adding, f"an add of {len(rollouts)}", act

    def _drawing(
        self, n: int | None, train_step: int, rng: np.random.Generator, out: Workspace | None
    ) -> tuple[Line, str, Callable[[], Done[Draw] | None]]:
        def act() -> Done[Draw] | None:
            step = self._step(train_step)
            if self._closed:
                return Done(self._rest(n, step, rng, out))
            before = len(self._buffer)
            self._buffer.retain(train_step=step)
            if len(self._buffer) < before:
                self._crossing.changed()
            if self._possible(n) and not self._buffer.can_sample(1 if n is None else n):
                return None
            return Done(self._buffer.sample(n, train_step=step, rng=rng, out=out))

        return self._crossing.drawing, f"a draw of {n}", act

    def _possible(self, n: int | None) -> bool:
        """Whether waiting may help; else the buffer is asked at once and says what is wrong."""
        return n is None or (n >= 1 and (n <= self._buffer.capacity or self._buffer.sampler.repeats))

    def _rest(self, n: int | None, step: int, rng: np.random.Generator, out: Workspace | None) -> Draw:
        buffer = self._buffer
        buffer.retain(train_step=step)
        left = int(np.count_nonzero(buffer.columns["uses"] == 0))
        if not (self._hand_out and left):
            raise EndOfStream(
                f"the buffer is closed and nothing is left to draw; {len(buffer)} rollouts are kept in it"
            )
        sampler, limiter = buffer.sampler, buffer.limiter
        buffer.sampler, buffer.limiter = _NeverDrawn(isinstance(sampler, Newest)), MinSize(1)
        try:
            return buffer.sample(left if n is None else min(n, left), train_step=step, rng=rng, out=out)
        finally:
            buffer.sampler, buffer.limiter = sampler, limiter

    def _through(self, line: Line, wants: str, act: Callable[[], Done[T] | None], timeout_s: float | None) -> T:
        woken = threading.Event()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._crossing.turn(line, woken.set, wants) as turn:
            while (done := self._crossing.attempt(turn, line, act)) is None:
                if not woken.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    raise WaitTimeout(f"{wants} waited {timeout_s:g} s for the buffer to let it")
                woken.clear()
        return done.value


class _NeverDrawn:
    """Rows that have never been drawn, each once; oldest first, or newest first."""

    repeats = False

    def __init__(self, newest_first: bool) -> None:
        self._newest_first = newest_first

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
        rows = columns.live()
        rows = rows[columns["uses"][rows] == 0]
        return np.asarray((rows[::-1] if self._newest_first else rows)[:n])
