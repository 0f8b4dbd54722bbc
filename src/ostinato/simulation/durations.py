"""How long a generator's request and an optimizer step take, in units of C: one optimizer step on one trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ostinato.errors import ConfigError
from ostinato.loop.pace import Pace
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import check_choice, check_finite
from ostinato.simulation.lengths import Fixed, Lengths

LONGEST = 1e12
"""C, and times as long: sums of durations must stay floats that still tell one step from the next."""

DURATION_STREAM = 4
"""Second entry of the seeds of durations: a stream that no other part of a run uses."""


@dataclass(frozen=True, slots=True)
class Service:
    """What makes a request slower or faster than mu n / B.

    `lengths` of the completions; `batching`: `continuous`, a request takes as long as its mean length says (slots are
    refilled), or `longest`, as its longest completion says (everybody waits for it). A request is a straggler with
    probability `straggler_fraction` and then takes `straggler_factor` times as long. `pause`: time a generator loses
    to new weights: once when it takes them up between two requests (`pause_for` taken), or for each time they were
    published since its last request, as when they are swapped in while it works (published). `reward_latency`: time
    from the last token to the reward, in which the generator waits. Times are in units of C. Raises `ConfigError` for
    negative times, a fraction outside [0, 1], a factor below 1, or either
    above 1e12.
    """

    lengths: Lengths = field(default_factory=Fixed)
    batching: Literal["continuous", "longest"] = "continuous"
    straggler_fraction: float = 0.0
    straggler_factor: float = 1.0
    pause: float = 0.0
    pause_for: Literal["taken", "published"] = "taken"
    reward_latency: float = 0.0

    def __post_init__(self) -> None:
        check_choice("batching", self.batching, ("continuous", "longest"))
        check_choice("pause_for", self.pause_for, ("taken", "published"))
        check_finite("straggler_fraction", self.straggler_fraction)
        check_finite("straggler_factor", self.straggler_factor)
        if not 0 <= self.straggler_fraction <= 1 or not 1 <= self.straggler_factor <= LONGEST:
            raise ConfigError(
                "stragglers need a fraction within [0, 1] and a factor of at least 1 and at most "
                f"{LONGEST:g}, got {self.straggler_fraction} and {self.straggler_factor}"
            )
        for name, time in (("pause", self.pause), ("reward latency", self.reward_latency)):
            if not 0 <= check_finite(name, time) <= LONGEST:
                raise ConfigError(f"{name} must be within 0 and {LONGEST:g}, got {time}")


class Durations:
    """A `loop.pace.Pace` with lengths, stragglers and pauses; adds up what it hands out.

    Each request has a random stream of its own, named by its first group, so a duration does not depend on the order
    of events. `busy_generate` and `busy_train`: time handed out so far, pauses and reward latency included; `due`: when
    the request of each first group will be finished, until somebody takes it out.
    """

    def __init__(self, plain: Pace, service: Service, *, seed: int, now: Callable[[], float]) -> None:
        self._plain, self._service, self._seed, self._now = plain, service, seed, now
        self._held: dict[int, int] = {}
        self.due: dict[int, float] = {}
        self.busy_generate = 0.0
        self.busy_train = 0.0
        self.paused = 0.0

    def generate(self, worker: int, rollouts: Rollouts) -> float:
        """Time of a request that worker `worker` starts now."""
        service = self._service
        duration = self._plain.generate(worker, rollouts) * self._slowness(rollouts) + service.reward_latency
        version = int(rollouts.policy_version_min[0])
        missed = version - self._held.get(worker, version)
        paused = service.pause * (missed if service.pause_for == "published" else missed > 0)
        self._held[worker] = version
        self.paused += paused
        duration += paused
        self.busy_generate += duration
        self.due[int(rollouts.group_id[0])] = self._now() + duration
        return duration

    def train(self, draw: Draw) -> float:
        """Time of an optimizer step."""
        duration = self._plain.train(draw)
        self.busy_train += duration
        return duration

    def _slowness(self, rollouts: Rollouts) -> float:
        service = self._service
        if isinstance(service.lengths, Fixed) and not service.straggler_fraction:
            return 1.0
        rng = np.random.default_rng([self._seed, DURATION_STREAM, int(rollouts.group_id[0])])
        lengths = service.lengths.draw(len(rollouts), rng)
        slowness = float(lengths.mean() if service.batching == "continuous" else lengths.max())
        return slowness * service.straggler_factor if rng.random() < service.straggler_fraction else slowness
