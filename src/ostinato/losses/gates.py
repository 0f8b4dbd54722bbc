"""Smooth gates in place of the clip: the ratio passes through a function that bends instead of breaking off.

In all of them: r = pi / mu of a token, A the advantage and w the importance weight of rollout i (1 when `weights_B` is
None), mu the policy that generated, reduce as `aggregation` and `denominator` say (see `reduce`).
Shapes: `logprobs_BL`, `behavior_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L); `advantages_B`, `weights_B`
(B,). Only `logprobs_BL` receives a gradient. Raises `DataError` for any other shape, `ConfigError` for an impossible
setting. Metrics: `ratio_metrics`, where `clipped` is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.losses.checks import check_above, check_finite, check_inputs
from ostinato.losses.objective import policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import masked_log_ratio
from ostinato.losses.reduce import Aggregation


def sapo(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    positive_temperature: float = 1.0,
    negative_temperature: float = 1.05,
    aggregation: Aggregation = "sequence_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """A sigmoid gate on the ratio.

        loss = -reduce(w_i (4 / tau) sigmoid(tau (r_it - 1)) A_i),     of slope 1 in r at r = 1

    tau: `positive_temperature` where A > 0, else `negative_temperature`. Shapes and symbols: this module's.
    Source: SAPO, arXiv 2511.20347.
    """
    for name, value in (("positive_temperature", positive_temperature), ("negative_temperature", negative_temperature)):
        check_above(name, value, 0)
        check_finite(name, value)
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    advantages_B1 = advantages_B.detach()[:, None]
    # Of the type of the ratio: advantages may be whole numbers.
    tau_B1 = log_ratio_BL.new_full(advantages_B1.shape, negative_temperature)
    tau_B1[advantages_B1 > 0] = positive_temperature
    gate_BL = 4 / tau_B1 * torch.sigmoid(tau_B1 * torch.expm1(log_ratio_BL))
    return policy_loss(
        gate_BL * advantages_B1,
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


def gipo(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    sigma: float,
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """A Gaussian weight of the log-ratio on the unclipped surrogate.

        loss = -reduce(w_i sg(g_it) r_it A_i),       g = exp(-(log r)^2 / (2 sigma^2))

    sg: no gradient. The paper's sigma was not found, so it has no default. Shapes and symbols: this module's.
    Source: GIPO, arXiv 2603.03955 (the abstract's log-ratio; a secondary note writes r - 1).
    """
    check_above("sigma", sigma, 0)
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    trust_BL = (-(log_ratio_BL.detach() / sigma).square() / 2).exp()
    return policy_loss(
        trust_BL * log_ratio_BL.exp() * advantages_B.detach()[:, None],
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


def shaped_importance(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    offset: float = 0.1,
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """A saturating function of the ratio, for replayed successes: unlikely tokens get the larger gradient.

        loss = -reduce(w_i f(r_it) A_i),       f(r) = r / (r + offset),      f'(r) = offset / (r + offset)^2

    At r = 1 its gradient is f'(1) = 0.0826 of the on-policy one. For demonstrations of unknown probability mu is taken
    as 1: pass zeros as `behavior_logprobs_BL`. Shapes and symbols: this module's.
    Source: ExGRPO, arXiv 2510.02245; LUFFY, arXiv 2504.14945. Their code reduces by a constant.
    """
    check_above("offset", offset, 0)
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    ratio_BL = log_ratio_BL.exp()
    return policy_loss(
        ratio_BL / (ratio_BL + offset) * advantages_B.detach()[:, None],
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )
