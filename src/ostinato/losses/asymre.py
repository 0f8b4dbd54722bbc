"""AsymRE: REINFORCE on old data with a lowered baseline instead of an importance ratio."""

from __future__ import annotations

from torch import Tensor

from ostinato.losses.checks import check_inputs
from ostinato.losses.output import LossOutput
from ostinato.losses.reinforce import reinforce


def asymre(
    logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    behavior_logprobs_BL: Tensor | None = None,
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Policy loss without ratio and without clip.

        loss = -1/B sum_i w_i A_i sum_t m_it log pi(y_it),      A_i = r_i - (mean_i + shift)

    with mask m, importance weight w of rollout i (1 when `weights_B` is None) and the advantages of
    `ostinato.advantages.shifted_advantages`; B rollouts (or `denominator`: those of the whole batch, so that
    micro-batches add up). A baseline below the mean reward lets the policy keep several answers; one above it, in
    general, a single answer that need not be the best.

    Shapes: `logprobs_BL` and the bool `mask_BL` (B, L); `advantages_B`, `weights_B` (B,). Natural logs. The stored
    `behavior_logprobs_BL` (B, L) serve the metrics alone; without them `tokens` is the only one. Raises `DataError` for
    any other shape.
    Source: AsymRE, arXiv 2506.20520.
    """
    check_inputs(logprobs_BL, mask_BL, advantages_B=advantages_B)
    return reinforce(
        logprobs_BL,
        advantages_B,
        mask_BL,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
        denominator=denominator,
    )
