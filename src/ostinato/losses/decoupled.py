"""Losses with a third policy: the proximal one, at which the trust region is centered.

mu generated the tokens; prox is the policy at the start of the step (recomputed by the trainer, or interpolated); pi is
being optimized. Symbols besides: A the advantage and w the importance weight of rollout i (1 when `weights_B` is None);
reduce as `aggregation` and `denominator` say (see `reduce`).
Shapes: `logprobs_BL`, `proximal_logprobs_BL`, `behavior_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L);
`advantages_B`, `weights_B` (B,). Only `logprobs_BL` receives a gradient. Raises `DataError` for any other shape,
`ConfigError` for an impossible setting. Metrics: `ratio_metrics` of pi / mu.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses.checks import check_above, check_clip, check_inputs, check_range
from ostinato.losses.objective import clipped_objective, policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import Bound, Level, at_level, bounded_weights, masked_log_ratio
from ostinato.losses.reduce import Aggregation


def decoupled_ppo(
    logprobs_BL: Tensor,
    proximal_logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    clip_low: float = 0.8,
    clip_high: float = 1.2,
    dual_clip: float | None = None,
    low: float = 0.0,
    high: float = math.inf,
    level: Level = "token",
    bound: Bound = "cap",
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """PPO around the proximal policy, times the importance weight of the proximal policy to the one that generated.

        loss = -reduce(w_i rho_it min(u_it A_i, clip(u_it, clip_low, clip_high) A_i)),     u = pi / prox

    rho: the detached ratio prox / mu at its `level`, within [low, high] by cap or mask (`bounded_weights`); the clip
    under `dual_clip` as in `clipped_objective`. With prox = mu this is GRPO; where prox and mu are the same weights in
    two engines, rho is the correction for their mismatch: truncated importance sampling. Shapes: this module's.
    Source: arXiv 2110.00641; AReaL, arXiv 2505.24298; mismatch of engines: https://fengyao.notion.site/off-policy-rl
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        proximal_logprobs_BL=proximal_logprobs_BL,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    _check_settings(clip_low, clip_high, dual_clip, low, high)
    moved_BL = masked_log_ratio(logprobs_BL, proximal_logprobs_BL, mask_BL)
    stale_BL = at_level(masked_log_ratio(proximal_logprobs_BL.detach(), behavior_logprobs_BL, mask_BL), mask_BL, level)
    rho_BL = bounded_weights(stale_BL, low=low, high=high, bound=bound)
    objective_BL, clipped_BL = clipped_objective(moved_BL.exp(), advantages_B, clip_low, clip_high, dual_clip=dual_clip)
    return policy_loss(
        rho_BL * objective_BL,
        mask_BL,
        log_ratio_BL=masked_log_ratio(logprobs_BL.detach(), behavior_logprobs_BL, mask_BL),
        clipped_BL=clipped_BL | (rho_BL != stale_BL.exp()),
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


def centered_clip(
    logprobs_BL: Tensor,
    proximal_logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    replayed_B: Tensor | None = None,
    clip_low: float = 0.8,
    clip_high: float = 1.28,
    dual_clip: float | None = 10.0,
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """The clip of width `clip_high` - `clip_low` around where the policy stood at the start of the step.

        loss = -reduce(w_i min(r_it A_i, clip(r_it, c_it - (1 - clip_low), c_it + (clip_high - 1)) A_i)),   r = pi / mu

    c = prox / mu for replayed rollouts and 1 for fresh ones (bool `replayed_B` (B,); None: all are replayed).
    `clip_low` and `clip_high` are the bounds at c = 1. `dual_clip` as in `clipped_objective`. Shapes: this module's.
    Source: BAPO (Buffer Matters), arXiv 2602.20722.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        proximal_logprobs_BL=proximal_logprobs_BL,
        behavior_logprobs_BL=behavior_logprobs_BL,
        replayed_B=replayed_B,
        weights_B=weights_B,
    )
    _check_settings(clip_low, clip_high, dual_clip, 0.0, math.inf)
    log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    center_BL = masked_log_ratio(proximal_logprobs_BL.detach(), behavior_logprobs_BL, mask_BL).exp()
    if replayed_B is not None:
        center_BL = torch.where(replayed_B[:, None], center_BL, 1.0)
    low_BL, high_BL = center_BL - (1 - clip_low), center_BL + (clip_high - 1)
    objective_BL, clipped_BL = clipped_objective(log_ratio_BL.exp(), advantages_B, low_BL, high_BL, dual_clip=dual_clip)
    return policy_loss(
        objective_BL,
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        clipped_BL=clipped_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


@torch.no_grad()
def interpolated_proximal_logprobs(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    *,
    version: int,
    proximal_version: int,
    behavior_version_BL: Tensor,
) -> Tensor:
    """Proximal log-probs without a forward pass, detached: (B, L).

        log prox = log mu + a (log pi - log mu),      a = clamp((v_prox - v_mu) / (v_pi - v_mu), 0, 1)

    and a = 0 where v_pi <= v_mu. `version` and `proximal_version` count the updates of pi and prox;
    `behavior_version_BL` int64 (B, L), or (B, 1) when a rollout has one version: those of mu. Raises `ConfigError` for
    a proximal policy newer than pi.
    Source: A-3PO, as in AReaL.
    """
    if proximal_version > version:
        raise ConfigError(f"proximal_version must be at most version {version}, got {proximal_version}")
    elapsed_BL = (version - behavior_version_BL).clamp(min=1)
    share_BL = ((proximal_version - behavior_version_BL) / elapsed_BL).clamp(0, 1).to(logprobs_BL.dtype)
    return behavior_logprobs_BL + share_BL * (logprobs_BL - behavior_logprobs_BL)


def _check_settings(clip_low: float, clip_high: float, dual_clip: float | None, low: float, high: float) -> None:
    check_clip(clip_low, clip_high)
    check_range("low", low, "high", high)
    if dual_clip is not None:
        check_above("dual_clip", dual_clip, clip_high)
