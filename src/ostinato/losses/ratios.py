"""Importance ratios: between two policies, of a token or of a sequence, free or bounded.

Ratios live in log space until the last moment, and every log-ratio is bounded to ±`LOG_RATIO_BOUND`, so that no loss
overflows. Outside the bound (a ratio above 2e17, or below 4e-18) there is no gradient.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ostinato.losses.checks import check_choice

LOG_RATIO_BOUND = 40.0
Level = Literal["token", "sequence", "geometric"]
"""Of what a ratio is: of each token; of the whole completion (the product); or the geometric mean over its tokens."""
Bound = Literal["cap", "mask"]
"""What happens to a weight beyond its bound: it takes the bound, or it becomes 0."""


def masked(values_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """The values, and 0 where the bool mask is False: what stands there reaches neither value nor gradient.

    bfloat16 and float16 come out as float32: sums need its digits, and the largest ratio its range.
    """
    if values_BL.is_floating_point() and values_BL.dtype.itemsize < 4:
        values_BL = values_BL.float()
    return torch.where(mask_BL, values_BL, 0.0)


def masked_log_ratio(logprobs_BL: Tensor, behavior_logprobs_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """log pi(token) - log mu(token), bounded, and 0 where the bool mask is False: (B, L).

    The mask selects the inputs, not the difference: -inf or NaN outside the mask reaches neither value nor gradient.
    Only `logprobs_BL` receives a gradient.
    """
    difference_BL = masked(logprobs_BL, mask_BL) - masked(behavior_logprobs_BL.detach(), mask_BL)
    return difference_BL.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def mean_log_ratio(log_ratio_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """Mean over the tokens of each rollout, 0 without tokens: (B,). `log_ratio_BL` is 0 outside the mask."""
    return log_ratio_BL.sum(1) / mask_BL.sum(1).clamp(min=1)


def at_level(log_ratio_BL: Tensor, mask_BL: Tensor, level: Level) -> Tensor:
    """The log-ratio that each token is weighted by, bounded, and 0 where the mask is False: (B, L).

        token      log r_it
        sequence   sum_t log r_it                 the completion's own ratio pi(y) / mu(y)
        geometric  1/|y_i| sum_t log r_it         GSPO, arXiv 2507.18071, equation 7

    `log_ratio_BL` comes from `masked_log_ratio`. Raises `ConfigError` for another level.
    """
    check_choice("level", level, get_args(Level))
    if level == "token":
        return log_ratio_BL
    of_rollout_B = log_ratio_BL.sum(1) if level == "sequence" else mean_log_ratio(log_ratio_BL, mask_BL)
    return masked(of_rollout_B.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)[:, None].expand_as(log_ratio_BL), mask_BL)


@torch.no_grad()
def bounded_weights(log_ratio_BL: Tensor, *, low: float, high: float, bound: Bound) -> Tensor:
    """Detached importance weights from log-ratios, kept within [low, high]: (B, L).

        cap    min(max(r, low), high)             truncated importance sampling
        mask   r where low <= r <= high, else 0   masked importance sampling; with 0.5 and 5, IcePop

    `high` may be infinite. Raises `ConfigError` for another bound.
    """
    check_choice("bound", bound, get_args(Bound))
    ratio_BL = log_ratio_BL.exp()
    if bound == "cap":
        return ratio_BL.clamp(low, high)
    return torch.where((ratio_BL >= low) & (ratio_BL <= high), ratio_BL, 0.0)
