"""A policy that costs nothing: rollouts of one token, rewards by chance, train steps that change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.protocols import Draw, GroupRequest, Task, Trained, Weights
from ostinato.rollouts import Rollouts

REWARD_STREAM = 5
"""Second entry of the seeds of rewards."""


class OneTask:
    """The same prompt for ever."""

    def __init__(self) -> None:
        self._task = Task(prompt="", answer="", prompt_id=0, source="simulation")
        self.test: Sequence[Task] = ()

    def train(self, index: int) -> Task:
        """The task."""
        return self._task


class ChanceScorer:
    """Reward 1 with probability `success_rate`, else 0, from a stream of the group's own."""

    def __init__(self, success_rate: float, seed: int) -> None:
        self._rate, self._seed = success_rate, seed

    def score(self, rollouts: Rollouts, tasks: Sequence[Task]) -> NDArray[np.float64]:
        """Rewards, shape (n,)."""
        if self._rate in (0.0, 1.0):
            return np.full(len(rollouts), self._rate)
        rng = np.random.default_rng([self._seed, REWARD_STREAM, int(rollouts.group_id[0])])
        return (rng.random(len(rollouts)) < self._rate).astype(np.float64)


class IdleGenerator:
    """Makes rollouts of one token at once; how long it would take is for `Durations` to say."""

    def __init__(self) -> None:
        self._version = 0
        self._blank: dict[int, Rollouts] = {}

    def load(self, weights: Weights, version: int) -> None:
        """Remember the version."""
        self._version = version

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """One group a request."""
        for request in requests:
            n = request.group_size
            if n not in self._blank:
                self._blank[n] = Rollouts.from_completions([[0]] * n, [[0]] * n, [[0.0]] * n, source="simulation")
            yield self._blank[n].replace(
                group_id=np.full(n, request.group_id),
                policy_version_min=np.full(n, self._version),
                policy_version_max=np.full(n, self._version),
                birth_step=np.full(n, request.birth_step),
            )


class IdleTrainer:
    """Learns nothing."""

    def step(self, draw: Draw) -> Trained:
        """Nothing."""
        return Trained({}, {})

    def weights(self) -> Weights:
        """None."""
        return {}

    def save(self, directory: Path) -> None:
        """There is nothing to keep."""

    def load(self, directory: Path) -> None:
        """There is nothing to take."""
