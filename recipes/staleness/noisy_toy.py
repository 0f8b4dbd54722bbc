"""The toy with a verifier that is not sure: every completion of every prompt is right with a probability of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ostinato.backends.toy import ToyBackend
from ostinato.config import RunConfig
from ostinato.protocols import Task
from ostinato.rollouts import Rollouts

QUALITY_STREAM, REWARD_STREAM = 21, 22


class NoisyScorer:
    """Reward 1 with probability u^2, else 0; u is uniform in [0, 1], one for each completion of each prompt (by seed).

    The best of V^L completions is nearly always right, a completion drawn blindly in a third of the cases. One lucky
    draw proves nothing: a policy that takes it for proof ends on a completion that is not the best.
    """

    def __init__(self, config: RunConfig) -> None:
        toy, self._seed = config.toy, config.seed
        self._place = toy.vocabulary ** np.arange(toy.length)
        rng = np.random.default_rng([self._seed, QUALITY_STREAM])
        self._quality = rng.random((toy.prompts, toy.vocabulary**toy.length)) ** 2

    def score(self, rollouts: Rollouts, tasks: Sequence[Task]) -> NDArray[np.float64]:
        """Rewards, shape (n,); the same for the same groups."""
        first = [self._seed, REWARD_STREAM, int(rollouts.group_id[0]), int(rollouts.birth_step[0]), len(rollouts)]
        chosen = rollouts.tokens[rollouts.loss_mask].reshape(len(rollouts), -1) @ self._place
        quality = self._quality[[task.prompt_id for task in tasks], chosen]
        return (np.random.default_rng(first).random(len(rollouts)) < quality).astype(np.float64)


class NoisyToyBackend(ToyBackend):
    """A toy backend with this verifier."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.scorer = NoisyScorer(config)  # type: ignore[assignment]
