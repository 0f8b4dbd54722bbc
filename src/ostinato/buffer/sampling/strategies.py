"""Which stored rollouts of one prompt: the retrieval rules of arXiv 2506.09340 (RePO), 2510.02245 and 2507.07451.

Each takes read-only columns, the rows that hold rollouts of the prompt (int64, ascending: oldest first), the number
wanted and a generator, and returns k of these rows, or all when there are at most k. Ties are broken at random.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows

PromptStrategy = Callable[[Columns, Rows, int, np.random.Generator], Rows]
"""(columns, rows of one prompt, k, rng) -> at most k of these rows; `all_rows` alone may return more."""


def all_rows(columns: Columns, rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """Every stored rollout of the prompt, whatever k is."""
    return rows


def random_k(columns: Columns, rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """k at random without replacement."""
    return rng.permutation(rows)[:k]


def highest_k(columns: Columns, rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """The k of highest reward, highest first."""
    return _ascending(columns["reward"], rows, rng)[::-1][:k]


def recent_k(columns: Columns, rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """The k newest, newest first."""
    return np.sort(rows)[::-1][:k]


def lowest_priority_k(columns: Columns, rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """The k of lowest priority, lowest first: lowest entropy when entropies are written back (arXiv 2510.02245)."""
    return _ascending(columns["priority"], rows, rng)[:k]


def max_variance_k(columns: Columns, rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """The k whose rewards have the greatest variance; among those, the greatest sum.

    Exact in O(m log m): variance is strictly convex in each reward, so a best set consists of the lowest i and the
    highest k - i rewards for some i, and only k + 1 sets are compared.
    """
    if len(rows) <= k or k < 1:
        return rows[: max(k, 0)]
    order = _ascending(columns["reward"], rows, rng)
    rewards = columns["reward"][order].astype(np.float64)
    low = np.arange(k + 1)
    chosen = [np.concatenate([rewards[:i], rewards[len(rewards) - (k - i) :]]) for i in low]
    variances = np.array([subset.var() for subset in chosen])
    best = variances >= variances.max() - 1e-12 * max(1.0, float(np.abs(rewards).max()) ** 2)
    # The fewer low rewards a set holds, the greater is its sum.
    i = int(low[best].min())
    return np.concatenate([order[len(order) - (k - i) :][::-1], order[:i]])


def _ascending(values: NDArray[np.float64], rows: Rows, rng: np.random.Generator) -> Rows:
    shuffled = rng.permutation(rows)
    return shuffled[np.argsort(values[shuffled], kind="stable")]


STRATEGIES: dict[str, PromptStrategy] = {
    "all": all_rows,
    "random_k": random_k,
    "highest_k": highest_k,
    "recent_k": recent_k,
    "max_variance_k": max_variance_k,
    "lowest_priority_k": lowest_priority_k,
}
"""The rules by name."""
