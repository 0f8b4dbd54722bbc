"""Run the real loop over modelled durations and sum up what happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ostinato.config import BufferConfig, LoopConfig, ModelConfig, RunConfig, TaskConfig
from ostinato.errors import ConfigError
from ostinato.loop.channel import MemoryChannel
from ostinato.loop.clock import VirtualClock
from ostinato.loop.events import Admitted, Stepped
from ostinato.loop.loop import Loop, Parts
from ostinato.loop.pace import SteadyPace
from ostinato.loop.stores import awaited, build_store
from ostinato.protocols import Sampling
from ostinato.setting_checks import check_share, check_whole
from ostinato.simulation.backend import ChanceScorer, IdleGenerator, IdleTrainer, OneTask
from ostinato.simulation.durations import Durations, Service
from ostinato.theory import compute_ratio, mean_uses

MOST_ROLLOUTS = 10**8
"""Rollouts of the longest simulation: about half an hour. A tiny mu T / W would otherwise play for ever."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What to run: the sections of a recipe that have no model in them, and how long work takes.

    `loop.train_steps` must be set, and generate at most 1e8 rollouts. `success_rate`: probability of reward 1, which
    retention by reward needs.
    """

    loop: LoopConfig
    buffer: BufferConfig
    service: Service = field(default_factory=Service)
    success_rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loop.train_steps < 1:
            raise ConfigError(f"a simulation needs at least 1 train step, got {self.loop.train_steps}")
        check_share("success_rate", self.success_rate)
        check_whole("seed", self.seed, least=0)
        loop = self.loop
        if loop.clock != "virtual":
            raise ConfigError(f"a simulation runs on the virtual clock, got loop.clock {loop.clock!r}")
        if self.buffer.kind == "replay":
            made = loop.batch_size * loop.train_steps / mean_uses(loop.mu, loop.generators, loop.trainers)
            if made > MOST_ROLLOUTS:
                raise ConfigError(
                    f"{loop.train_steps} train steps with mu T / W = {loop.mu * loop.trainers / loop.generators:.3g} "
                    f"generate about {made:.2g} rollouts, a simulation takes {MOST_ROLLOUTS:.0e}; play fewer steps"
                )
        # A recipe refuses settings that contradict each other; what has no model in it stands for the rest.
        RunConfig(model=ModelConfig(backend="toy"), task=TaskConfig(name="toy"), loop=self.loop, buffer=self.buffer)


def simulate(simulation: Simulation) -> dict[str, Any]:
    """JSON-able results; times in units of C, one optimizer step on one trainer. The same seed gives the same result.

    staleness, residence, steps_since_last_use   over drawn samples: `counts` by value and `mean`, None of nothing
    uses                                         the same over rollouts that have left the buffer
    new                                          samples that were drawn for the first time
    generator_idle, trainer_idle                 share of the time since the first optimizer step in which they waited
    queue_wait                                   `mean` and `max` time of finished requests before a full queue
    compute_per_update                           active time a train step, in baseline updates
    gamma, mean_uses                             what theory says of it, and of the uses, when nobody idles
    """
    loop, clock = build(simulation)
    durations = loop.pace
    assert isinstance(durations, Durations)
    waits: list[float] = []
    began: tuple[float, float, float] | None = None
    for event in loop.run(clock):
        if isinstance(event, Admitted):
            waits.append(clock.now - durations.due.pop(event.groups[0]))
        elif isinstance(event, Stepped) and began is None:
            began = _worked(durations, clock)
    assert began is not None
    now, generating, training = (end - start for end, start in zip(_worked(durations, clock), began, strict=True))
    config = simulation.loop
    return {
        "train_steps": loop.ledger.train_step,
        "time": clock.now,
        "generated": loop.ledger.generated,
        "trained": loop.ledger.trained,
        "buffer_size": len(loop.parts.store),
        **_finite(loop.statistics.summary()),
        "generator_idle": _share(now * config.generators, generating),
        "trainer_idle": _share(now, training),
        "queue_wait": {"mean": float(np.mean(waits)) if waits else 0.0, "max": max(waits, default=0.0)},
        "paused": durations.paused,
        "compute_per_update": loop.compute / loop.ledger.train_step,
        "gamma": compute_ratio(config.mu, config.generators, config.trainers),
        "mean_uses": mean_uses(config.mu, config.generators, config.trainers),
    }


def build(simulation: Simulation) -> tuple[Loop, VirtualClock]:
    """The loop, ready to be driven by the clock: `loop.run(clock)` yields what happens."""
    config, clock, channel, trainer = simulation.loop, VirtualClock(), MemoryChannel(), IdleTrainer()
    channel.publish(trainer.weights(), 0)
    store = build_store(simulation.buffer, config)
    scorer = ChanceScorer(simulation.success_rate, simulation.seed)
    parts = Parts([IdleGenerator()], scorer, store, trainer, channel, OneTask())
    pace = Durations(
        SteadyPace(config.mu, config.batch_size, config.trainers),
        simulation.service,
        seed=simulation.seed,
        now=lambda: clock.now,
    )
    queue = simulation.buffer.kind == "queue"
    waits = awaited(simulation.buffer, config)
    return Loop(config, Sampling(), parts, seed=simulation.seed, consume_once=queue, awaited=waits, pace=pace), clock


def _finite(summary: dict[str, Any]) -> dict[str, Any]:
    """Means of empty histograms are None, so that the result is JSON."""
    return {
        name: {**value, "mean": value["mean"] if sum(value["counts"]) else None} if isinstance(value, dict) else value
        for name, value in summary.items()
    }


def _worked(durations: Durations, clock: VirtualClock) -> tuple[float, float, float]:
    """(now, time that generators worked until now, the same of the learner): what is still to come is left out."""
    ahead = {rank: flight.deliver_at - clock.now for rank, flight in clock.in_flight().items()}
    learner = ahead.pop(0, 0.0)
    return clock.now, durations.busy_generate - sum(ahead.values()), durations.busy_train - learner


def _share(available: float, used: float) -> float:
    return max(0.0, 1 - used / available) if available > 0 else 0.0
