"""A replay buffer that any number of threads may use at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import JournaledBuffer, ReplayBuffer
from ostinato.buffer.padding import Layout, PaddedDraw
from ostinato.buffer.workspace import Workspace
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts
from ostinato.sharing.crossing import Crossing, Done, Line
from ostinato.sharing.failures import BufferClosed, EndOfStream, WaitTimeout, checked_timeout
from ostinato.sharing.leftovers import take_rest

T = TypeVar("T")
Steps = int | Callable[[], int]

Take = Callable[[int | None, int], T]
"""Draws a batch of n at a train step."""


class LockedBuffer:
    """The thread-safe face of a `ReplayBuffer`, journaled or not. A `protocols.Store`.

    One lock, and waiting where the limiter says so.

    Those who wait go in the order in which they came, adds and draws each in a line of their own. Train steps need not
    rise from call to call: an older one counts as the newest that the buffer has seen. The bare buffer must not be
    touched meanwhile, except inside `exclusively()`. Any number of `AsyncBuffer`s may stand beside it.
    """

    def __init__(self, buffer: ReplayBuffer | JournaledBuffer) -> None:
        self._buffer = buffer
        self._inner = buffer.buffer if isinstance(buffer, JournaledBuffer) else buffer
        self._crossing = Crossing()
        self._closed = False
        self._hand_out = True

    @contextmanager
    def exclusively(self) -> Iterator[ReplayBuffer | JournaledBuffer]:
        """The buffer itself, nobody else in it: for saving, resizing, `columns`, or several steps in one."""
        with self._crossing.alone():
            yield self._buffer

    def add(
        self, rollouts: Rollouts, *, train_step: int, priorities: Any = None, timeout_s: float | None = None
    ) -> NDArray[np.int64]:
        """`ReplayBuffer.add`, once the limiter lets them in; waits at most `timeout_s` (None: as long as it takes).

        Raises `WaitTimeout`, `BufferClosed`, or `CircularWait` when the first draw in line waits for adds that this one
        holds up; also what the buffer raises. Then nothing was added.
        """
        return self._through(*self._adding(rollouts, train_step, priorities), timeout_s)

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
        return self._through(*self._drawing(n, train_step, self._packed(rng, out)), timeout_s)

    def sample_padded(
        self,
        n: int | None,
        *,
        train_step: int,
        rng: np.random.Generator,
        layout: Layout | None = None,
        out: Workspace | None = None,
        timeout_s: float | None = None,
    ) -> PaddedDraw:
        """`ReplayBuffer.sample_padded`, in line, waiting and ending as `sample`."""
        return self._through(*self._drawing(n, train_step, self._padded(rng, layout, out)), timeout_s)

    def sample_prompts(
        self, prompt_ids: Any, per_prompt: int, *, train_step: int, rng: np.random.Generator, **options: Any
    ) -> Draw:
        """`ReplayBuffer.sample_prompts`, at once: it asks no limiter, so it waits for nothing, `close()` included."""
        with self.exclusively() as buffer:
            return buffer.sample_prompts(prompt_ids, per_prompt, train_step=self._step(train_step), rng=rng, **options)

    def update_priorities(self, rollout_ids: Any, priorities: Any) -> int:
        """See `ReplayBuffer.update_priorities`; at once, as all that follow."""
        with self.exclusively() as buffer:
            return buffer.update_priorities(rollout_ids, priorities)

    def update(self, rollout_ids: Any, **columns: Any) -> int:
        """See `ReplayBuffer.update`."""
        with self.exclusively() as buffer:
            return buffer.update(rollout_ids, **columns)

    def remove(self, rollout_ids: Any) -> int:
        """See `ReplayBuffer.remove`."""
        with self.exclusively() as buffer:
            return buffer.remove(rollout_ids)

    def metrics(self) -> dict[str, float]:
        """Those of the buffer, and how many adds and draws stand in line."""
        with self._crossing.looking():
            own = {"waiting_adds": self._crossing.adding, "waiting_draws": self._crossing.drawing}
            return self._buffer.metrics() | {name: float(len(line.turns)) for name, line in own.items()}

    def batches(self, n: int, *, train_step: Steps, rng: np.random.Generator) -> Iterator[Draw]:
        """Draws until the end of the stream; `train_step`: a number, or what is asked before each draw."""
        while True:
            try:
                yield self.sample(n, train_step=train_step() if callable(train_step) else train_step, rng=rng)
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
        self, rollouts: Rollouts, train_step: int, priorities: Any
    ) -> tuple[Line, str, Callable[[], Done[NDArray[np.int64]] | None]]:
        """The line, what is wanted, and the attempt to get it."""

        def act() -> Done[NDArray[np.int64]] | None:
            if self._closed:
                raise BufferClosed(f"the buffer is closed: {len(rollouts)} rollouts were refused")
            if len(rollouts) <= self._buffer.capacity and not self._buffer.can_add(len(rollouts)):
                return None
            return Done(self._buffer.add(rollouts, train_step=self._step(train_step), priorities=priorities))

        return self._crossing.adding, f"an add of {len(rollouts)}", act

    def _packed(self, rng: np.random.Generator, out: Workspace | None) -> Take[Draw]:
        return lambda n, step: self._buffer.sample(n, train_step=step, rng=rng, out=out)

    def _padded(self, rng: np.random.Generator, layout: Layout | None, out: Workspace | None) -> Take[PaddedDraw]:
        return lambda n, step: self._buffer.sample_padded(n, train_step=step, rng=rng, layout=layout, out=out)

    def _drawing(self, n: int | None, train_step: int, take: Take[T]) -> tuple[Line, str, Callable[[], Done[T] | None]]:
        def act() -> Done[T] | None:
            step = self._step(train_step)
            if self._closed:
                return Done(take_rest(self._inner, n, step, take, hand_out=self._hand_out))
            before = len(self._buffer)
            self._buffer.retain(train_step=step)
            if len(self._buffer) < before:
                self._crossing.changed()
            if self._possible(n) and not self._buffer.can_sample(1 if n is None else n):
                return None
            return Done(take(n, step))

        return self._crossing.drawing, f"a draw of {n}", act

    def _possible(self, n: int | None) -> bool:
        """Whether waiting may help; else the buffer is asked at once and says what is wrong."""
        return n is None or (n >= 1 and (n <= self._buffer.capacity or self._inner.sampler.repeats))

    def _through(self, line: Line, wants: str, act: Callable[[], Done[T] | None], timeout_s: float | None) -> T:
        timeout_s = checked_timeout(timeout_s)
        woken = threading.Event()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._crossing.turn(line, woken.set, wants) as turn:
            while (done := self._crossing.attempt(turn, line, act)) is None:
                if not woken.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    raise WaitTimeout(f"{wants} waited {timeout_s:g} s for the buffer to let it")
                woken.clear()
        return done.value
