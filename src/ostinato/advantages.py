"""Advantages from rewards: computed once, when a group is complete, and frozen in its rollouts.

Any other advantage is computed from the stored mean and deviation of the group, never from the members of the group
that a replay buffer happens to still hold.

Shape letter: n rollouts; groups of any size, their members in any order.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.rollouts import Rollouts


def group_statistics(
    rewards_n: NDArray[np.float64], group_id_n: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the rewards of each rollout's group: two arrays float64 (n,).

        mean_g = sum_i r_i / G        std_g = sqrt(sum_i (r_i - mean_g)^2 / (G - 1))

    A group of one has deviation 0. Equal rewards give exactly 0: sums run over differences to a member of the group.
    Source: GRPO, arXiv 2402.03300, section 4.1.2, with the unbiased deviation that its implementations use.
    """
    _, first, group, size = np.unique(group_id_n, return_index=True, return_inverse=True, return_counts=True)
    offset = rewards_n - rewards_n[first][group]
    mean_offset = np.bincount(group, weights=offset, minlength=len(size)) / size
    squares = np.bincount(group, weights=(offset - mean_offset[group]) ** 2, minlength=len(size))
    std = np.sqrt(squares / np.maximum(size - 1, 1))
    return (rewards_n[first] + mean_offset)[group], std[group]


def grpo_advantages(
    rewards_n: NDArray[np.float64], mean_n: NDArray[np.float64], std_n: NDArray[np.float64], *, eps: float = 1e-4
) -> NDArray[np.float64]:
    """(r - mean) / (std + eps), and 0 where std is 0 (equal rewards, a group of one): float64 (n,).

    Source: GRPO, arXiv 2402.03300, section 4.1.2.
    """
    return np.divide(rewards_n - mean_n, std_n + eps, out=np.zeros(len(rewards_n)), where=std_n > 0)


def shifted_advantages(
    rewards_n: NDArray[np.float64], mean_n: NDArray[np.float64], *, shift: float
) -> NDArray[np.float64]:
    """r - (mean + shift): float64 (n,). A negative shift, in units of reward, weights successes more than failures.

    Source: AsymRE, arXiv 2506.20520; -0.1 there for rewards in {-1, +1}, so -0.05 for {0, 1}.
    """
    return rewards_n - (mean_n + shift)


def score_group(rollouts: Rollouts, rewards: Sequence[float] | NDArray[Any]) -> Rollouts:
    """Set reward, group_reward_mean, group_reward_std and the frozen GRPO advantage of whole groups.

    `rewards`: one finite number a rollout. Raises `DataError` otherwise. Warns when no two rollouts share a `group_id`:
    then every advantage is 0.
    """
    try:
        reward = np.array(rewards, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"rewards must be numbers, one a rollout: {error}") from None
    if reward.shape != (len(rollouts),):
        raise DataError(f"rewards have shape {reward.shape}, expected ({len(rollouts)},): one a rollout")
    bad = np.flatnonzero(~np.isfinite(reward))
    if len(bad):
        row = int(bad[0])
        raise DataError(f"reward {reward[row]} of rollout {row} (group {rollouts.group_id[row]}) is not finite")
    if len(rollouts) > 1 and len(np.unique(rollouts.group_id)) == len(rollouts):
        warnings.warn(
            f"each of the {len(rollouts)} rollouts is a group of its own, so every advantage is 0: "
            "give the rollouts of one prompt one group_id",
            RuntimeWarning,
            stacklevel=2,
        )
    mean, std = group_statistics(reward, rollouts.group_id)
    return rollouts.replace(
        reward=reward,
        group_reward_mean=mean,
        group_reward_std=std,
        advantage=grpo_advantages(reward, mean, std),
    )
