"""Statistics of groups, and the check that a group is one generation of one prompt.

Shape letter: n rollouts; groups of any size in one batch, their members in any order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError
from ostinato.ragged import as_array, described, is_array
from ostinato.rollouts import Rollouts

LARGEST_REWARD = 1e100
"""The squares of larger ones overflow."""

STATISTICS_TOLERANCE = 1e-6
"""Relative: stored means and deviations of one group may differ by what float32 arithmetic leaves."""


def group_index(
    group_id_n: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The groups in rising order, where the first member of each stands, and the number of each rollout's group."""
    if len(group_id_n) and (group_id_n == group_id_n[0]).all():  # one group, as most calls have: nothing to sort
        return group_id_n[:1], np.zeros(1, np.int64), np.zeros(len(group_id_n), np.int64)
    groups, first, group = np.unique(group_id_n, return_index=True, return_inverse=True)
    return groups, first, group


def group_statistics(
    rewards_n: NDArray[np.float64],
    group_id_n: NDArray[np.int64],
    *,
    ddof: int = 1,
    counted_n: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the rewards of each rollout's group: two arrays float64 (n,).

        mean_g = sum_i r_i / G        std_g = sqrt(sum_i (r_i - mean_g)^2 / (G - ddof))

    A group of one has deviation 0. Equal rewards give exactly 0: sums run over differences to a member of the group.
    `counted_n`: sums run over these members alone, and all members get the result; a group must count one (None: all).
    Fresh members alone keep the baseline of a group free of the rollouts that other policies put into it (DUET).
    Raises `ConfigError` unless ddof is 0 or 1, `DataError` for other types, shapes that differ, a reward beyond
    ±`LARGEST_REWARD` or NaN, or a group that counts nobody.
    Source: GRPO, arXiv 2402.03300, section 4.1.2; the unbiased deviation, ddof 1, is that of its implementations.
    """
    if not isinstance(ddof, int) or ddof not in (0, 1):
        raise ConfigError(f"ddof must be 0 or 1, got {ddof!r}")
    _check_shapes(rewards_n, group_id_n, counted_n)
    rewards_n = rewards_n.astype(np.float64)  # differences of small or unsigned integers would wrap around
    bad = np.flatnonzero(~(np.abs(rewards_n) <= LARGEST_REWARD))
    if len(bad):
        raise DataError(
            f"reward of rollout {bad[0]} is {rewards_n[bad[0]]}, expected a number within ±{LARGEST_REWARD:g}"
        )
    groups, _, group = group_index(group_id_n)
    counting = np.arange(len(group)) if counted_n is None else np.flatnonzero(counted_n)
    size = np.bincount(group[counting], minlength=len(groups))
    if not size.all():
        raise DataError(f"group {groups[size.argmin()]} has no member that counts")
    first = np.empty(len(groups), np.int64)
    first[group[counting][::-1]] = counting[::-1]  # of equal indices the last one written stays
    offset = rewards_n - rewards_n[first][group]
    mean_offset = np.bincount(group[counting], weights=offset[counting], minlength=len(groups)) / size
    square = (offset - mean_offset[group]) ** 2
    squares = np.bincount(group[counting], weights=square[counting], minlength=len(groups))
    std = np.sqrt(squares / np.maximum(size - ddof, 1))
    return (rewards_n[first] + mean_offset)[group], std[group]


def group_sizes(group_id_n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rollouts that share each rollout's `group_id`, itself included: int64 (n,). Raises `DataError` for other ids than
    integers (n,)."""
    ids = as_array(group_id_n, "group ids")
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise DataError(f"group ids are {described(ids)}, expected integers (n,)")
    _, _, group = group_index(ids)
    return np.bincount(group)[group] if len(group) else np.empty(0, np.int64)


def check_groups(rollouts: Rollouts) -> None:
    """Raise `DataError` when one `group_id` stands for more than one generation of one prompt.

    Members of a group share `prompt_id`, `birth_step` (the train step at which the group was generated) and the stored
    group mean and deviation; where they do not, a replayed and a fresh copy of a prompt, or two prompts, have come
    under one number, and a statistic over that number would mix them. Policy versions may differ: weights can be
    exchanged while a group is being generated.
    """
    _, first, group = group_index(rollouts.group_id)
    for name in ("prompt_id", "birth_step", "group_reward_mean", "group_reward_std"):
        column = getattr(rollouts, name)
        own, of_first = column, column[first][group]
        if column.dtype.kind == "f":
            bound = STATISTICS_TOLERANCE * np.maximum(np.abs(own), np.abs(of_first))
            other = np.abs(own - of_first) > bound
        else:
            other = own != of_first
        if other.any():
            row = int(other.argmax())
            raise DataError(
                f"group {rollouts.group_id[row]} holds two generations: {name} of rollout {first[group[row]]} is "
                f"{of_first[row]}, of rollout {row} {own[row]}; give every generation of a prompt its own group_id"
            )


def _check_shapes(
    rewards_n: NDArray[np.float64], group_id_n: NDArray[np.int64], counted_n: NDArray[np.bool_] | None
) -> None:
    if not is_array(rewards_n) or rewards_n.dtype.kind not in "biuf":
        raise DataError(f"rewards are {described(rewards_n)}, expected an array of numbers (n,)")
    if not is_array(group_id_n) or group_id_n.dtype.kind not in "iu":
        raise DataError(f"group ids are {described(group_id_n)}, expected an array of integers (n,)")
    if rewards_n.ndim != 1 or group_id_n.shape != rewards_n.shape:
        raise DataError(f"rewards have shape {rewards_n.shape} and group ids {group_id_n.shape}, expected (n,) each")
    if counted_n is not None and (
        not is_array(counted_n) or counted_n.shape != rewards_n.shape or counted_n.dtype != np.bool_
    ):
        raise DataError(f"counted_n is {described(counted_n)}, expected bool {rewards_n.shape}")
