"""The advantage that a loss asks for by name, from what is stored in each rollout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.advantages import centered_advantages, fixed_advantages, shifted_advantages
from ostinato.config.losses import ADVANTAGES
from ostinato.errors import ConfigError
from ostinato.rollouts import Rollouts


def loss_advantages(rollouts: Rollouts, kind: str, *, shift: float = 0.0, baseline: float = 0.0) -> NDArray[np.float64]:
    """One advantage a rollout, float64 (n,). R is its reward, mean that of its whole group when it was generated.

        group_std        the advantage frozen in the rollout: (R - mean) / (std + 1e-4)
        group_mean       R - mean
        shifted          R - (mean + shift)            AsymRE
        fixed_baseline   R - baseline                  the reward itself at 0

    Nothing is computed from the members of a group that happen to be in the batch. Raises `ConfigError` for another
    name.
    """
    if kind == "group_std":
        return rollouts.advantage
    if kind == "group_mean":
        return centered_advantages(rollouts.reward, rollouts.group_reward_mean)
    if kind == "shifted":
        return shifted_advantages(rollouts.reward, rollouts.group_reward_mean, shift=shift)
    if kind == "fixed_baseline":
        return fixed_advantages(rollouts.reward, baseline=baseline)
    raise ConfigError(f"advantage must be one of {', '.join(ADVANTAGES)}, got {kind!r}")
