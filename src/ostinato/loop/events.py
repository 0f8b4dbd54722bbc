"""What the loop tells whoever drives it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.loop.clock import Event


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """An optimizer step was delivered and, where due, its weights published.

    `record`: metrics of the step. `batch_done`: no further epoch on the same batch follows, so nothing of the learner
    is in flight and a checkpoint may be written.
    """

    train_step: int
    record: dict[str, float | None]
    batch_done: bool


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    """A finished request of a generator entered the store."""

    generator: int
    rollouts: int
    reward_mean: float
