"""M2PO: a trust region on the second moment of the log-ratios, not on each of them."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ostinato.losses.checks import check_above, check_choice, check_inputs
from ostinato.losses.objective import clipped_objective, policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import masked_log_ratio
from ostinato.losses.reduce import Aggregation

Variant = Literal["mask", "cap", "released_cap"]
NARROWEST_BOUNDS = (0.7, 1.5)
"""The released code never clips inside these."""


@torch.no_grad()
def second_moment_bound(
    log_ratio_BL: Tensor,
    advantages_B: Tensor | None,
    mask_BL: Tensor,
    *,
    threshold: float = 0.04,
    variant: Variant = "mask",
) -> Tensor:
    """How far |log r| may go so that the mean of (log r)^2 over the harmful tokens stays within the threshold: scalar.

    Harmful are tokens whose ratio has already moved the way the advantage pushes it: A > 0 and r > 1, or A < 0 and
    r < 1; without advantages every token counts. Infinite where the mean is within the threshold as it is. Otherwise:

        mask           the largest |log r| kept when the largest are removed until the mean of the rest is within it
                       (equal values go together; 0 when none can stay)
        cap            the tau at which the mean of min(|log r|, tau)^2 equals the threshold
        released_cap   the largest |log r| below that tau, 0 when there is none

    `log_ratio_BL` comes from `masked_log_ratio`. It is a statistic of a batch: compute it over the whole batch when
    micro-batches have to add up. Raises `ConfigError` for another variant or a threshold that is not above 0.
    Source: M2PO, arXiv 2510.01161 (paper: mask; released code: the last one); over all tokens, with the proximal
    policy's ratio to mu: AReaL.
    """
    check_choice("variant", variant, get_args(Variant))
    check_above("threshold", threshold, 0)
    considered_BL = mask_BL if advantages_B is None else mask_BL & harmful(log_ratio_BL, advantages_B)
    sizes = log_ratio_BL[considered_BL].double().abs().sort().values
    squares, n = sizes.square(), len(sizes)
    sums = squares.cumsum(0)
    if n == 0 or sums[-1] <= threshold * n:
        return log_ratio_BL.new_tensor(math.inf)
    rank = torch.arange(n, dtype=sizes.dtype, device=sizes.device)
    # The first token that has to give way; at most the last, since the mean over all is too large.
    over = sums > threshold * (rank + 1) if variant == "mask" else squares * (n - 1 - rank) + sums >= threshold * n
    first = int(over.int().argmax())
    below = sizes[sizes < sizes[first]] if variant == "mask" else sizes[:first]
    if variant == "cap":
        return ((threshold * n - squares[:first].sum()) / (n - first)).sqrt().to(log_ratio_BL.dtype)
    return below[-1].to(log_ratio_BL.dtype) if len(below) else log_ratio_BL.new_zeros(())


def harmful(log_ratio_BL: Tensor, advantages_B: Tensor) -> Tensor:
    """Tokens whose ratio has already moved the way the advantage pushes it: bool (B, L)."""
    return log_ratio_BL * advantages_B[:, None] > 0


def m2po(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    threshold: float = 0.04,
    variant: Variant = "mask",
    log_ratio_bound: Tensor | None = None,
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Policy loss that constrains only harmful tokens, and only when their second moment is too large.

        loss = -reduce(w_i c_it),    r = pi / mu,    tau = `log_ratio_bound`, or `second_moment_bound` of this call
        mask           c = r A, and 0 where the token is harmful and |log r| > tau
        cap            c = min(r A, clip(r, exp(-tau), exp(tau)) A)
        released_cap   the same with bounds widened to contain [0.7, 1.5]

    with advantage A and importance weight w of rollout i (1 when `weights_B` is None). Masked tokens count in the
    denominator. Shapes: `logprobs_BL`, `behavior_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L);
    `advantages_B`, `weights_B` (B,); `log_ratio_bound` scalar. Only `logprobs_BL` receives a gradient. Raises
    `DataError` for any other shape, `ConfigError` for an impossible setting.
    Source: M2PO, arXiv 2510.01161; paper and released code differ, see `variant`.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    if log_ratio_bound is None:
        log_ratio_bound = second_moment_bound(log_ratio_BL, advantages_B, mask_BL, threshold=threshold, variant=variant)
    objective_BL, clipped_BL = _constrained(log_ratio_BL, advantages_B, log_ratio_bound.detach(), variant)
    return policy_loss(
        objective_BL,
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        clipped_BL=clipped_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


def _constrained(log_ratio_BL: Tensor, advantages_B: Tensor, tau: Tensor, variant: Variant) -> tuple[Tensor, Tensor]:
    check_choice("variant", variant, get_args(Variant))
    ratio_BL = log_ratio_BL.exp()
    if variant == "mask":
        dropped_BL = harmful(log_ratio_BL, advantages_B) & (log_ratio_BL.abs() > tau)
        return torch.where(dropped_BL, 0.0, ratio_BL * advantages_B.detach()[:, None]), dropped_BL
    low, high = (-tau).exp(), tau.exp()
    if variant == "released_cap":
        low, high = low.clamp(max=NARROWEST_BOUNDS[0]), high.clamp(min=NARROWEST_BOUNDS[1])
    return clipped_objective(ratio_BL, advantages_B, low, high)
