"""The last step of every policy loss, and the clip that several of them share."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.losses.output import LossOutput, ratio_metrics
from ostinato.losses.reduce import Aggregation, reduce


def policy_loss(
    objective_BL: Tensor,
    mask_BL: Tensor,
    *,
    log_ratio_BL: Tensor | None,
    clipped_BL: Tensor | None = None,
    weights_B: Tensor | None,
    aggregation: Aggregation,
    denominator: float | None,
) -> LossOutput:
    """-reduce(w_i objective_it), the importance weight w of rollout i detached (1 when `weights_B` is None).

    Metrics: those of `ratio_metrics` for the log-ratio of each token to the behavior policy; `tokens` alone without it.
    `clipped_BL` (any shape that broadcasts to (B, L)): tokens that a bound acts on; None: no token.
    """
    if weights_B is not None:
        objective_BL = weights_B.detach()[:, None] * objective_BL
    loss = -reduce(objective_BL, mask_BL, aggregation=aggregation, denominator=denominator)
    if log_ratio_BL is None:
        return LossOutput(loss, {"tokens": mask_BL.sum()})
    if clipped_BL is None:
        clipped_BL = torch.zeros_like(mask_BL)
    return LossOutput(loss, ratio_metrics(log_ratio_BL.detach(), clipped_BL, mask_BL))


def clipped_objective(
    ratio_BL: Tensor,
    advantages_B: Tensor,
    low: float | Tensor,
    high: float | Tensor,
    *,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, low, high) A), never below c A for A < 0 under a dual clip c; and where the gradient is 0.

    `low` and `high`: two numbers, or two tensors that broadcast to (B, L). Returns two tensors (B, L), the second bool.
    Source: PPO, arXiv 1707.06347, equation 7; dual clip: arXiv 1912.09729.
    """
    advantages_B1 = advantages_B.detach()[:, None]
    free_BL = ratio_BL * advantages_B1
    bounded_BL = ratio_BL.clamp(low, high) * advantages_B1  # type: ignore[arg-type]
    objective_BL, clipped_BL = torch.minimum(free_BL, bounded_BL), bounded_BL < free_BL
    if dual_clip is None:
        return objective_BL, clipped_BL
    floor_B1 = dual_clip * advantages_B1
    floored_BL = (advantages_B1 < 0) & (objective_BL < floor_B1)
    return torch.where(floored_BL, floor_B1, objective_BL), clipped_BL | floored_BL
