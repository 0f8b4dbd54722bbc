"""The metrics of a train step, computed when somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.loop.ledger import Ledger
from ostinato.protocols import Draw, Trained
from ostinato.stats import diagnose


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a train step was, as it stood when it ended: nothing in here changes afterwards, so neither do the numbers.

    `ledger`: a copy; `fresh_rewards`: mean and size of each request that entered since the step before; `followed`: see
    `FollowUp.act`. It holds the batch: keep the numbers, not the record.
    """

    ledger: Ledger
    compute: float
    buffer_size: int
    fresh_rewards: Sequence[tuple[float, int]]
    draw: Draw
    trained: Trained
    followed: Mapping[str, float]
    correct_above: float

    def numbers(self) -> dict[str, float | None]:
        """By the names of docs/metrics.md."""
        draw, rollouts, rewards = self.draw, self.draw.rollouts, self.fresh_rewards
        fresh = sum(mean * n for mean, n in rewards) / sum(n for _, n in rewards) if rewards else None
        return {
            "compute": self.compute,
            **{key: float(value) for key, value in self.ledger.state_dict().items()},
            "mu_measured": self.ledger.mu_measured(),
            "buffer_size": float(self.buffer_size),
            "reward": float(rollouts.reward.mean()),
            "fresh_reward": fresh,
            "informative_fraction": float(np.mean(rollouts.group_reward_std > 0)),
            "completion_tokens": float(rollouts.completion_lengths.mean()),
            "truncated_fraction": float(rollouts.truncated.mean()),
            "staleness": float(draw.staleness.mean()),
            "residence": float(draw.residence.mean()),
            "uses": float(draw.uses.mean()) + 1,
            "unique_fraction": len(np.unique(draw.rollout_ids)) / len(draw),
            **self.trained.metrics,
            **self.followed,
            **self._diagnosis(),
        }

    def _diagnosis(self) -> dict[str, float]:
        if not self.trained.figures:
            return {}
        return diagnose(
            self.trained.figures,
            staleness=self.draw.staleness,
            fresh=self.draw.uses == 0,
            correct=self.draw.rollouts.reward > self.correct_above,
        )
