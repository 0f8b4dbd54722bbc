"""Rollouts and tokens that a loss drops because the policy has moved away from them."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.losses.checks import check_above
from ostinato.losses.ratios import mean_log_ratio


@torch.no_grad()
def sequence_mask(log_ratio_BL: Tensor, advantages_B: Tensor, mask_BL: Tensor, *, delta: float) -> Tensor:
    """False for rollouts with A < 0 that the policy has become much less likely to produce: bool (B,).

        M_i = 0   if A_i < 0 and 1/|y_i| sum_t (log mu(y_it) - log pi(y_it)) > delta,      else 1

    `log_ratio_BL` comes from `masked_log_ratio`. Raises `ConfigError` unless delta > 0.
    Source: DeepSeek-V3.2, arXiv 2512.02556, equation 9.
    """
    check_above("sequence_mask_delta", delta, 0)
    return (advantages_B >= 0) | (-mean_log_ratio(log_ratio_BL, mask_BL) <= delta)


@torch.no_grad()
def negative_veto(crossed_BL: Tensor, advantages_B: Tensor, mask_BL: Tensor) -> Tensor:
    """The mask without the rest of a rollout of negative advantage, from its first token that crossed on: bool (B, L).

        m'_it = m_it [A_i >= 0 or no s <= t, m_is, has crossed]

    `crossed_BL` bool (B, L): tokens whose ratio lies beyond the trigger. Which side and how far the paper's public
    descriptions do not say, so the caller compares. Pass the result as the mask of a loss, and the count of the first
    mask as its denominator, to remove the gradient of these tokens alone.
    Source: mu-GRPO, arXiv 2605.17570 (negative-advantage veto).
    """
    vetoed_BL = (crossed_BL & mask_BL).cumsum(1) > 0
    return mask_BL & ~(vetoed_BL & (advantages_B < 0)[:, None])
