"""GRPO: PPO's clipped surrogate with group-relative advantages, no critic and no KL penalty."""

from __future__ import annotations

from torch import Tensor

from ostinato.losses.clipped import clipped_surrogate
from ostinato.losses.output import LossOutput


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
    return clipped_surrogate(
        logprobs_BL,
        behavior_logprobs_BL,
        advantages_B,
        mask_BL,
        clip_low=clip_low,
        clip_high=clip_high,
        weights_B=weights_B,
        denominator=denominator,
    )
