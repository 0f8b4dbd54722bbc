"""The unbiased estimator of pass@k."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ostinato.errors import ConfigError, DataError


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability that k of n samples, drawn without replacement, hold at least one of the c correct ones.

    1 - C(n-c, k) / C(n, k), as the product of (n-c-j) / (n-j) over j < k: no factorials, exactly 1 where fewer than k
    samples are wrong. `n` and `c` are scalars or arrays that broadcast; the result has their shape.
    Raises `ConfigError` when k < 1 or k > n, `DataError` when c is not between 0 and n.
    Source: Chen et al. 2021 (arXiv 2107.03374), eq. 1.
    """
    samples, correct = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(c, np.int64))
    if k < 1 or np.any(samples < k):
        raise ConfigError(f"pass@k needs 1 <= k <= samples, got k = {k} and {np.min(samples)} samples")
    if np.any((correct < 0) | (correct > samples)):
        raise DataError(f"correct counts must lie between 0 and samples, got {correct.min()} to {correct.max()}")
    drawn = np.arange(k)
    wrong = np.maximum((samples - correct)[..., None] - drawn, 0)
    return np.asarray(1.0 - np.prod(wrong / (samples[..., None] - drawn), axis=-1))
