"""From one value a token to one value a batch.

A denominator is a count over the batch of the whole optimizer step. Passing it lets the results of micro-batches add up
to the result of the batch; a count below 1 (nothing to train on) is taken as 1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_mean(values_BL: Tensor, mask_BL: Tensor, *, denominator: float | None = None) -> Tensor:
    """Sum of the values under the bool mask over the number of tokens: every token weighs the same. Scalar.

    `denominator`: tokens of the whole batch; None: tokens under this mask.
    Source: DAPO, arXiv 2503.14476, section 3.3 (token-level loss).
    """
    total = torch.where(mask_BL, values_BL, 0.0).sum()
    if denominator is None:
        return total / mask_BL.sum().clamp(min=1)
    return total / max(denominator, 1.0)


def sequence_sum_mean(values_BL: Tensor, mask_BL: Tensor, *, denominator: float | None = None) -> Tensor:
    """Sum of the values under the bool mask over the number of rollouts: the mean of log pi(completion) terms. Scalar.

    `denominator`: rollouts of the whole batch; None: B.
    """
    count = len(values_BL) if denominator is None else denominator
    return torch.where(mask_BL, values_BL, 0.0).sum() / max(count, 1.0)
