"""From a reward and what is stored about its group to an advantage.

Every function takes arrays of n rollouts: the mean and deviation of each one's group as `group_statistics` returns or
`Rollouts` keep them, so it does not matter which members a buffer still holds. Results are in units of reward; those of
`grpo_advantages` have none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError


def grpo_advantages(
    rewards_n: NDArray[np.float64], mean_n: NDArray[np.float64], std_n: NDArray[np.float64], *, eps: float = 1e-4
) -> NDArray[np.float64]:
    """(r - mean) / (std + eps), and 0 where std is 0 (equal rewards, a group of one): float64 (n,).

    The stored deviation has ddof 1; `population_deviation` turns it into that of ddof 0.
    Source: GRPO, arXiv 2402.03300, section 4.1.2.
    """
    return np.divide(rewards_n - mean_n, std_n + eps, out=np.zeros(len(rewards_n)), where=std_n > 0)


def centered_advantages(rewards_n: NDArray[np.float64], mean_n: NDArray[np.float64]) -> NDArray[np.float64]:
    """r - mean: float64 (n,). Source: Dr. GRPO, arXiv 2503.20783."""
    return rewards_n - mean_n


def leave_one_out_advantages(
    rewards_n: NDArray[np.float64], mean_n: NDArray[np.float64], size_n: NDArray[np.int64] | int
) -> NDArray[np.float64]:
    """The reward above the mean of the other members of the group, and 0 in a group of one: float64 (n,).

        r_i - sum_{j != i} r_j / (G - 1)  =  (r_i - mean) G / (G - 1)

    so the stored mean and the size G of the group at generation are enough; of whole groups G is `group_sizes`. Raises
    `DataError` for a size below 1. Source: RLOO, arXiv 2402.14740.
    """
    size = np.broadcast_to(np.asarray(size_n), rewards_n.shape)
    if size.min(initial=1) < 1:
        raise DataError(f"group size of rollout {size.argmin()} is {size.min()}, expected 1 or more")
    return np.where(size > 1, (rewards_n - mean_n) * size / np.maximum(size - 1, 1), 0.0)


def shifted_advantages(
    rewards_n: NDArray[np.float64], mean_n: NDArray[np.float64], *, shift: float
) -> NDArray[np.float64]:
    """r - (mean + shift): float64 (n,). A negative shift, in units of reward, weights successes more than failures.

    Source: AsymRE, arXiv 2506.20520; -0.1 there for rewards in {-1, +1}, so -0.05 for {0, 1}.
    """
    return rewards_n - (mean_n + shift)


def fixed_advantages(rewards_n: NDArray[np.float64], *, baseline: float) -> NDArray[np.float64]:
    """r - baseline, the same for all groups: float64 (n,).

    With rewards -1 and +1, a share p of successes and a baseline c, successes hold the share
    p (1 - c) / (1 + c (1 - 2p)) of all weight. Source: TOPR, arXiv 2503.14286.
    """
    return rewards_n - baseline


def population_deviation(std_n: NDArray[np.float64], size_n: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """The deviation of ddof 0 from the stored one of ddof 1, std sqrt((G - 1) / G): float64 (n,)."""
    size = np.broadcast_to(np.asarray(size_n), std_n.shape)
    return std_n * np.asarray(np.sqrt(np.maximum(size - 1, 0) / np.maximum(size, 1)), np.float64)


def informative(std_n: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True where the rewards of the group differ: bool (n,). Elsewhere every centered advantage is 0.

    Source: DAPO's dynamic sampling, arXiv 2503.14476, section 3.2.
    """
    return std_n > 0
