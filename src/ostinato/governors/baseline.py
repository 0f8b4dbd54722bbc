"""The baseline that gives an importance-weighted policy gradient the least variance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError

Floats = NDArray[np.float64]


def off_policy_baselines(
    rewards_n: Floats, log_ratio_n: Floats, gradient_square_n: Floats, group_id_n: NDArray[np.int64]
) -> Floats:
    """One baseline a group, repeated for its members: float64 (n,).

        b = sum_i w_i^2 |g_i|^2 R_i / sum_i w_i^2 |g_i|^2,      w_i = exp(log_ratio_i)

    w: the ratio pi / mu of the completion, in log space and not clipped, with which the loss weights it; g: gradient of
    the log-prob of the completion, `gradient_square_n` its squared norm (a backward pass for each rollout); R: reward.
    It is the b that minimizes sum_i |w_i (R_i - b) g_i|^2. The plain mean where every gradient of a group is 0.

    It is made of the members that are here: use it where groups stay whole. A member's own reward enters its baseline,
    so the gradient has a bias that vanishes with the size of the group.
    Raises `DataError` unless all arrays have shape (n,), numbers are finite, and squares are at least 0.
    Source: VCPO, arXiv 2602.17616 (optimal off-policy baseline; the advantage R - b is then divided by the deviation).
    """
    arrays = {"rewards_n": rewards_n, "log_ratio_n": log_ratio_n, "gradient_square_n": gradient_square_n}
    for name, array in arrays.items():
        if array.shape != group_id_n.shape or not np.isfinite(array).all():
            raise DataError(f"{name} needs {group_id_n.shape} finite numbers, got shape {array.shape}: {array}")
    if np.any(gradient_square_n < 0):
        raise DataError(f"gradient_square_n must be at least 0, got {gradient_square_n.min()}")
    groups, member_n = np.unique(group_id_n, return_inverse=True)
    with np.errstate(divide="ignore"):
        log_weight_n = 2 * log_ratio_n + np.log(gradient_square_n)
    top = np.full(len(groups), -np.inf)
    np.maximum.at(top, member_n, log_weight_n)
    flat = np.isneginf(top)  # no gradient in the whole group
    log_weight_n = np.where(flat[member_n], 0.0, log_weight_n - np.where(flat, 0.0, top)[member_n])
    weight_n = np.exp(log_weight_n)
    sums = np.bincount(member_n, weight_n * rewards_n, len(groups)) / np.bincount(member_n, weight_n, len(groups))
    return np.asarray(sums[member_n], np.float64)
