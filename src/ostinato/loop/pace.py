"""How long work takes on the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ostinato.governors.estimates import NOTHING_SPENT
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts


class Pace(Protocol):
    """Modelled durations, in units of C: one optimizer step on one trainer. The virtual clock alone uses them."""

    def generate(self, worker: int, rollouts: Rollouts) -> float:
        """Time that worker `worker` (from 0) takes for the request that became these rollouts."""

    def train(self, draw: Draw) -> float:
        """Time of an optimizer step on this batch."""


@dataclass(frozen=True, slots=True)
class SteadyPace:
    """mu n / B for n rollouts, 1 / T for an optimizer step.  Source: arXiv 2604.08706, section 2."""

    mu: float
    batch_size: int
    trainers: int

    def generate(self, worker: int, rollouts: Rollouts) -> float:
        """mu n / B, whoever works."""
        return self.mu * len(rollouts) / self.batch_size

    def train(self, draw: Draw) -> float:
        """1 / T, whatever the batch."""
        return 1.0 / self.trainers


class MeteredPace:
    """Another pace, and in `totals` what it has been asked for since the run began: generators' time, and that of
    `trainers` replicas, each with the rollouts it was spent on."""

    def __init__(self, pace: Pace, trainers: int) -> None:
        self._pace, self._trainers = pace, trainers
        self.totals = NOTHING_SPENT

    def generate(self, worker: int, rollouts: Rollouts) -> float:
        """What the other pace says."""
        took, spent = self._pace.generate(worker, rollouts), self.totals
        self.totals = spent._replace(generate_s=spent.generate_s + took, generated=spent.generated + len(rollouts))
        return took

    def train(self, draw: Draw) -> float:
        """What the other pace says."""
        took, spent = self._pace.train(draw), self.totals
        active = spent.train_s + took * self._trainers
        self.totals = spent._replace(train_s=active, trained=spent.trained + len(draw))
        return took
