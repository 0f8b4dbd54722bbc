"""Rewards into rollouts, once, when a group is complete."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.advantages.forms import grpo_advantages
from ostinato.advantages.groups import check_groups, group_index, group_statistics
from ostinato.errors import DataError
from ostinato.ragged import described, is_array
from ostinato.rollouts import Rollouts


def score_group(rollouts: Rollouts, rewards: Sequence[float] | NDArray[Any]) -> Rollouts:
    """Set reward, group_reward_mean, group_reward_std (ddof 1) and the frozen GRPO advantage of whole groups.

    `rewards`: one finite number a rollout. Raises `DataError` otherwise, and when one `group_id` stands for more than
    one generation of one prompt (`check_groups`). Warns when no two rollouts share a `group_id`: then every advantage
    is 0.
    """
    if isinstance(rewards, np.ndarray) and (not is_array(rewards) or rewards.dtype.kind in "cmM"):
        raise DataError(f"rewards must be numbers, one a rollout, got {described(rewards)}")
    try:
        reward = np.array(rewards, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last: a tensor that wants a gradient
        raise DataError(f"rewards must be numbers, one a rollout: {error}") from None
    if reward.shape != (len(rollouts),):
        raise DataError(f"rewards have shape {reward.shape}, expected ({len(rollouts)},): one a rollout")
    bad = np.flatnonzero(~np.isfinite(reward))
    if len(bad):
        row = int(bad[0])
        raise DataError(f"reward {reward[row]} of rollout {row} (group {rollouts.group_id[row]}) is not finite")
    if len(rollouts) > 1 and len(group_index(rollouts.group_id)[0]) == len(rollouts):
        warnings.warn(
            f"each of the {len(rollouts)} rollouts is a group of its own, so every advantage is 0: "
            "give the rollouts of one prompt one group_id",
            RuntimeWarning,
            stacklevel=2,
        )
    check_groups(rollouts)
    mean, std = group_statistics(reward, rollouts.group_id)
    return rollouts.replace(
        reward=reward,
        group_reward_mean=mean,
        group_reward_std=std,
        advantage=grpo_advantages(reward, mean, std),
    )
