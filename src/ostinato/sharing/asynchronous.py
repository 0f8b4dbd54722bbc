"""A replay buffer in asyncio: the same lines as the threads of `LockedBuffer` stand in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import JournaledBuffer, ReplayBuffer
from ostinato.buffer.padding import Layout, PaddedDraw
from ostinato.buffer.workspace import Workspace
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts
from ostinato.sharing.crossing import Done, Line
from ostinato.sharing.failures import EndOfStream, WaitTimeout, checked_timeout
from ostinato.sharing.locked import LockedBuffer, Steps

T = TypeVar("T")


class AsyncBuffer:
    """The asyncio face of a buffer; threads may use `locked`, the face below it, at the same time.

    Waiting suspends the task; adding and drawing themselves run in the event loop's thread (microseconds a rollout) in
    one piece. So a task that is cancelled has added or taken nothing, or has all of it. Order and errors: those of
    `LockedBuffer`. What is missing here and waits for nothing (`retain`, `state_arrays`, `exclusively` ...): `locked`.
    """

    def __init__(self, buffer: LockedBuffer | ReplayBuffer | JournaledBuffer) -> None:
        self.locked = buffer if isinstance(buffer, LockedBuffer) else LockedBuffer(buffer)

    async def add(
        self, rollouts: Rollouts, *, train_step: int, priorities: Any = None, timeout_s: float | None = None
    ) -> NDArray[np.int64]:
        """See `LockedBuffer.add`."""
        return await self._through(*self.locked._adding(rollouts, train_step, priorities), timeout_s)

    async def sample(
        self,
        n: int | None,
        *,
        train_step: int,
        rng: np.random.Generator,
        out: Workspace | None = None,
        timeout_s: float | None = None,
    ) -> Draw:
        """See `LockedBuffer.sample`."""
        return await self._through(*self.locked._drawing(n, train_step, self.locked._packed(rng, out)), timeout_s)

    async def sample_padded(
        self,
        n: int | None,
        *,
        train_step: int,
        rng: np.random.Generator,
        layout: Layout | None = None,
        out: Workspace | None = None,
        timeout_s: float | None = None,
    ) -> PaddedDraw:
        """See `LockedBuffer.sample_padded`."""
        take = self.locked._padded(rng, layout, out)
        return await self._through(*self.locked._drawing(n, train_step, take), timeout_s)

    async def sample_prompts(
        self, prompt_ids: Any, per_prompt: int, *, train_step: int, rng: np.random.Generator, **options: Any
    ) -> Draw:
        """See `LockedBuffer.sample_prompts`; awaited as every draw, though it waits for nothing."""
        return self.locked.sample_prompts(prompt_ids, per_prompt, train_step=train_step, rng=rng, **options)

    async def batches(self, n: int, *, train_step: Steps, rng: np.random.Generator) -> AsyncIterator[Draw]:
        """`async for draw in buffer.batches(...)`: draws until the end of the stream; see `LockedBuffer.batches`."""
        while True:
            step = train_step() if callable(train_step) else train_step
            try:
                draw = await self.sample(n, train_step=step, rng=rng)
            except EndOfStream:
                return
            yield draw

    def update_priorities(self, rollout_ids: Any, priorities: Any) -> int:
        """See `LockedBuffer.update_priorities`; at once, so there is nothing to await."""
        return self.locked.update_priorities(rollout_ids, priorities)

    def update(self, rollout_ids: Any, **columns: Any) -> int:
        """See `LockedBuffer.update`; at once."""
        return self.locked.update(rollout_ids, **columns)

    def metrics(self) -> dict[str, float]:
        """See `LockedBuffer.metrics`; at once."""
        return self.locked.metrics()

    def close(self, *, hand_out_rest: bool = True) -> None:
        """See `LockedBuffer.close`."""
        self.locked.close(hand_out_rest=hand_out_rest)

    def __len__(self) -> int:
        return len(self.locked)

    async def _through(self, line: Line, wants: str, act: Callable[[], Done[T] | None], timeout_s: float | None) -> T:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        crossing, timeout_s = self.locked._crossing, checked_timeout(timeout_s)
        deadline = None if timeout_s is None else loop.time() + timeout_s
        with crossing.turn(line, lambda: _wake(loop, woken), wants) as turn:
            while (done := crossing.attempt(turn, line, act)) is None:
                try:
                    async with asyncio.timeout_at(deadline):
                        await woken.wait()
                except TimeoutError:
                    raise WaitTimeout(f"{wants} waited {timeout_s:g} s for the buffer to let it") from None
                woken.clear()
        return done.value


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    if not loop.is_closed():  # a task that was dropped with its loop waits for nothing
        loop.call_soon_threadsafe(woken.set)
