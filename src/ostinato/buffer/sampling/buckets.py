"""Prompts by how often they are solved, then one stored trajectory of each (arXiv 2510.02245, ExGRPO)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows, enough
from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_finite, check_positive, check_whole, shown

LARGEST_GROUP = 1 << 20  # a bucket for each number of successes


class Buckets:
    """n different prompts, most of them solved about half of the time, and the best stored success of each.

    The pass count k of a prompt is that of its newest group: round(group_size * (group_reward_mean - low) / (high -
    low)), where `rewards` = (low, high) are the rewards of a failure and a success. Prompts with k = 0 or k =
    group_size take no part, nor do rollouts whose reward is not above the middle of the two. Buckets are drawn from a
    multinomial over those not empty with weight N(k; group_size / 2, sigma); what a bucket cannot give goes to the
    others in the same way. Prompts inside a bucket come uniformly without replacement; of each the rollout with the
    lowest value of the column `lowest` (its entropy, written back as the priority), the newest among equals.
    Raises `ConfigError` for settings without meaning, `DataError` when fewer than n prompts qualify. One pass a draw.
    """

    repeats = False

    def __init__(
        self,
        group_size: int = 8,
        *,
        sigma: float = 1.0,
        lowest: str = "priority",
        rewards: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        if not isinstance(lowest, str):
            raise ConfigError(f"lowest must be the name of a column, got {shown(lowest)}")
        self.group_size = check_whole("group_size", group_size, least=2, most=LARGEST_GROUP)
        self.sigma, self.lowest, self.rewards = check_positive("sigma", sigma), lowest, _checked_rewards(rewards)

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Rows:
        size = enough(self, columns, n)
        rows, pass_counts = self._candidates(columns)
        if len(rows) < size:
            raise DataError(f"Buckets cannot draw {size}: {len(rows)} prompts are solved sometimes and hold a success")
        held = np.bincount(pass_counts, minlength=self.group_size)[1:]
        shares = _split(size, bucket_weights(self.group_size, self.sigma), held, rng)
        chosen = [
            rng.choice(rows[pass_counts == k], int(share), replace=False)
            for k, share in enumerate(shares, start=1)
            if share
        ]
        return rng.permutation(np.concatenate(chosen))

    def rebuilt(self, columns: Columns) -> None:
        """Nothing is kept. Raises `ConfigError` when there is no column `lowest`."""
        try:
            columns[self.lowest]
        except KeyError as error:
            raise ConfigError(f"lowest of buckets: {error.args[0]}") from None

    def changed(self, columns: Columns, rows: Rows) -> None:
        """Nothing is kept."""

    def _candidates(self, columns: Columns) -> tuple[Rows, NDArray[np.int64]]:
        """One row for each prompt that qualifies, and the pass count of the prompt."""
        low, high = self.rewards
        live = columns.live()
        prompts, number = np.unique(columns["prompt_id"][live], return_inverse=True)
        newest = np.zeros(len(prompts), np.int64)
        np.maximum.at(newest, number, live)
        rate = (columns["group_reward_mean"][newest] - low) / (high - low)
        pass_counts = np.rint(rate * self.group_size).astype(np.int64)
        good = columns["reward"][live] > (low + high) / 2
        good &= ((pass_counts > 0) & (pass_counts < self.group_size))[number]
        rows, number = live[good], number[good]
        order = np.lexsort((-rows, columns[self.lowest][rows], number))
        _, first = np.unique(number[order], return_index=True)
        best = order[first]
        return rows[best], pass_counts[number[best]]


def _checked_rewards(rewards: Any) -> tuple[float, float]:
    if not isinstance(rewards, (list, tuple)) or len(rewards) != 2:
        raise ConfigError(f"rewards must be those of a failure and of a success, got {shown(rewards)}")
    low, high = (check_finite("each of the rewards", reward) for reward in rewards)
    if not low < high:
        raise ConfigError(f"rewards of a failure and of a success must rise, got {low} and {high}")
    return low, high


def bucket_weights(group_size: int, sigma: float = 1.0) -> NDArray[np.float64]:
    """Weight of the buckets k = 1 .. group_size - 1: normal density around group_size / 2, adding up to 1."""
    k = np.arange(1, group_size)
    weights = np.exp(-((k - group_size / 2) ** 2) / (2 * sigma**2))
    return np.asarray(weights / weights.sum())


def _split(
    n: int, weights: NDArray[np.float64], held: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """n rollouts over buckets, multinomially, none beyond what it holds."""
    counts = np.zeros(len(weights), np.int64)
    while counts.sum() < n:
        open_ = np.where(counts < held, np.maximum(weights, np.finfo(np.float64).tiny), 0.0)
        counts = np.minimum(counts + rng.multinomial(n - counts.sum(), open_ / open_.sum()), held)
    return counts
