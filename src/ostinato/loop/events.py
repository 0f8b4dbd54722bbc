"""What the loop tells whoever drives it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.loop.clock import Event
from ostinato.loop.record import StepRecord


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """An optimizer step was delivered and, where due, its weights published.

    `batch_done`: no further epoch on the same batch follows, so nothing of the learner is in flight and a checkpoint
    may be written. `step`: what `record` is computed from. `train_s`: what the step took.
    """

    train_step: int
    step: StepRecord
    batch_done: bool
    train_s: float

    @property
    def record(self) -> dict[str, float | None]:
        """Metrics of the step, computed at each call; the same whenever it is called."""
        return self.step.numbers()


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    """A finished request of a generator entered the store: its rollouts, by groups; their completion tokens, and the
    seconds that decoding them took."""

    generator: int
    rollouts: int
    reward_mean: float
    groups: tuple[int, ...]
    tokens: int
    generate_s: float
