"""Fresh and replayed rollouts of one prompt in one batch: normalized together or apart, never by accident.

Both functions return numbers to give to `group_statistics` in place of group ids. Shape letter: n rollouts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.advantages.groups import check_groups
from ostinato.errors import DataError
from ostinato.rollouts import Rollouts


def joint_groups(rollouts: Rollouts, fresh_n: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The fresh group of the same prompt, for replayed rollouts too: int64 (n,).

    `fresh_n` bool (n,): rollouts of this step. Over these numbers a group is its fresh members plus the replayed
    rollouts of its prompt, whatever generation they come from. Raises `DataError` where one group id stands for two
    generations, is fresh and replayed at once, or where a replayed rollout has no fresh group or more than one.
    Source: RLEP, arXiv 2507.07451 (16 fresh and 2 replayed); the "mixed" variant of RePO, arXiv 2506.09340.
    """
    _check_parts(rollouts, fresh_n)
    fresh_groups, first = np.unique(rollouts.group_id[fresh_n], return_index=True)
    prompts = rollouts.prompt_id[fresh_n][first]
    order = np.argsort(prompts, kind="stable")
    prompts, fresh_groups = prompts[order], fresh_groups[order]
    wanted = rollouts.prompt_id[~fresh_n]
    left, right = np.searchsorted(prompts, wanted, "left"), np.searchsorted(prompts, wanted, "right")
    bad = np.flatnonzero(right - left != 1)
    if len(bad):
        row, count = int(np.flatnonzero(~fresh_n)[bad[0]]), int((right - left)[bad[0]])
        raise DataError(
            f"replayed rollout {row} (group {rollouts.group_id[row]}, prompt {wanted[bad[0]]}) has {count} fresh groups"
            " of its prompt in this batch, expected 1"
        )
    joint_n = rollouts.group_id.copy()
    joint_n[~fresh_n] = fresh_groups[left]
    return joint_n


def split_groups(rollouts: Rollouts, fresh_n: NDArray[np.bool_]) -> NDArray[np.int64]:
    """One number for each fresh group and one for the replayed rollouts of each prompt: int64 (n,), from 0 up.

    `fresh_n` bool (n,): rollouts of this step. What was retrieved for a prompt is normalized by itself, over all
    generations that it comes from. Raises `DataError` where one group id stands for two generations, or is fresh and
    replayed at once. Source: the "split" variant of RePO, arXiv 2506.09340.
    """
    _check_parts(rollouts, fresh_n)
    keys = np.where(fresh_n, rollouts.group_id, rollouts.prompt_id)
    _, number_n = np.unique(np.stack([fresh_n.astype(np.int64), keys]), axis=1, return_inverse=True)
    return np.asarray(number_n, np.int64).reshape(-1)


def _check_parts(rollouts: Rollouts, fresh_n: NDArray[np.bool_]) -> None:
    if fresh_n.dtype != np.bool_ or fresh_n.shape != (len(rollouts),):
        raise DataError(f"fresh_n is {fresh_n.dtype} {fresh_n.shape}, expected bool ({len(rollouts)},)")
    check_groups(rollouts)
    both = np.intersect1d(rollouts.group_id[fresh_n], rollouts.group_id[~fresh_n])
    if len(both):
        raise DataError(
            f"group {both[0]} is both fresh and replayed: give every generation of a prompt its own group_id"
        )
