"""GRPO: PPO's clipped surrogate with group-relative advantages, no critic and no KL penalty."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses.output import LossOutput, ratio_metrics
from ostinato.losses.ratios import masked_log_ratio
from ostinato.losses.reduce import token_mean
from ostinato.losses.shapes import check_inputs


def grpo(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    clip_low: float = 0.8,
    clip_high: float = 1.2,
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Clipped importance-weighted policy loss.

        loss = -1/N sum_{i,t} m_it w_i min(r_it A_i, clip(r_it, clip_low, clip_high) A_i)
        r_it = pi(y_it) / mu(y_it)

    with mask m, N tokens under it (or `denominator`: those of the whole batch, so that micro-batches add up), advantage
    A and importance weight w of rollout i (1 when `weights_B` is None). mu generated the tokens; its log-probs are the
    stored ones. Only `logprobs_BL` receives a gradient; it is 0 where the clip is active: at r > clip_high with A > 0
    and at r < clip_low with A < 0.

    Shapes: `logprobs_BL`, `behavior_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L); `advantages_B`,
    `weights_B` (B,). Raises `DataError` for any other shape, `ConfigError` unless 0 <= clip_low <= 1 <= clip_high.
    Source: GRPO, arXiv 2402.03300, equation 3 without its KL term; clip: PPO, arXiv 1707.06347, equation 7; mean over
    all tokens of the batch: DAPO, arXiv 2503.14476, section 3.3.
    """
    check_inputs(logprobs_BL, mask_BL, advantages_B, behavior_logprobs_BL=behavior_logprobs_BL, weights_B=weights_B)
    if not 0 <= clip_low <= 1 <= clip_high:
        raise ConfigError(f"expected 0 <= clip_low <= 1 <= clip_high, got clip_low {clip_low}, clip_high {clip_high}")
    log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    ratio_BL = log_ratio_BL.exp()
    advantages_B1 = advantages_B.detach()[:, None]
    free_BL = ratio_BL * advantages_B1
    bounded_BL = ratio_BL.clamp(clip_low, clip_high) * advantages_B1
    surrogate_BL = torch.minimum(free_BL, bounded_BL)
    if weights_B is not None:
        surrogate_BL = weights_B.detach()[:, None] * surrogate_BL
    loss = -token_mean(surrogate_BL, mask_BL, denominator=denominator)
    return LossOutput(loss, ratio_metrics(log_ratio_BL, bounded_BL < free_BL, mask_BL))
