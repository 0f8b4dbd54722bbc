"""From one value a token to one value a batch.

A denominator is a count over the batch of the whole optimizer step. Passing it lets the results of micro-batches add up
to the result of the batch; a count below 1 (nothing to train on) is taken as 1; one that is not finite
raises `DataError`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ostinato.errors import ConfigError, DataError
from ostinato.losses.checks import check_choice

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]


def reduce(values_BL: Tensor, mask_BL: Tensor, *, aggregation: Aggregation, denominator: float | None = None) -> Tensor:
    """One of the reductions below, by name. Scalar.

        token_mean     sum over all tokens / tokens                     denominator: tokens
        sequence_mean  sum over rollouts of the mean of each / B        denominator: rollouts
        sequence_sum   sum over all tokens / B                          denominator: rollouts
        constant       sum over all tokens / denominator                rollouts times the longest completion allowed

    Without a denominator the counts are those of this call; `constant` has none of its own. Raises `ConfigError` for
    another name, and for `constant` without a denominator.
    """
    check_choice("aggregation", aggregation, get_args(Aggregation))
    if aggregation == "token_mean":
        return token_mean(values_BL, mask_BL, denominator=denominator)
    if aggregation == "sequence_mean":
        return sequence_mean(values_BL, mask_BL, denominator=denominator)
    if aggregation == "constant" and denominator is None:
        raise ConfigError("aggregation 'constant' needs its denominator: rollouts times the longest completion allowed")
    return sequence_sum_mean(values_BL, mask_BL, denominator=denominator)


def token_mean(values_BL: Tensor, mask_BL: Tensor, *, denominator: float | None = None) -> Tensor:
    """Sum of the values under the bool mask over the number of tokens: every token weighs the same. Scalar.

    `denominator`: tokens of the whole batch; None: tokens under this mask.
    Source: DAPO, arXiv 2503.14476, section 3.3 (token-level loss).
    """
    total = torch.where(mask_BL, values_BL, 0.0).sum()
    if denominator is None:
        return total / mask_BL.sum().clamp(min=1)
    return total / _at_least_1(denominator)


def sequence_mean(values_BL: Tensor, mask_BL: Tensor, *, denominator: float | None = None) -> Tensor:
    """Mean over rollouts of the mean of the values under the bool mask: every rollout weighs the same. Scalar.

    A rollout without tokens counts as one whose mean is 0. `denominator`: rollouts of the whole batch; None: B.
    Source: GRPO, arXiv 2402.03300, equation 3.
    """
    mean_B = torch.where(mask_BL, values_BL, 0.0).sum(1) / mask_BL.sum(1).clamp(min=1)
    count = len(values_BL) if denominator is None else denominator
    return mean_B.sum() / _at_least_1(count)


def sequence_sum_mean(values_BL: Tensor, mask_BL: Tensor, *, denominator: float | None = None) -> Tensor:
    """Sum of the values under the bool mask over the number of rollouts: the mean of log pi(completion) terms. Scalar.

    `denominator`: rollouts of the whole batch; None: B.
    """
    count = len(values_BL) if denominator is None else denominator
    return torch.where(mask_BL, values_BL, 0.0).sum() / _at_least_1(count)


def _at_least_1(count: float) -> float:
    if not math.isfinite(count):
        raise DataError(f"denominator must be a finite number, got {count}")
    return max(count, 1.0)
