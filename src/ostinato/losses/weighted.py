"""Losses whose ratio is a detached weight on A log pi: no token loses its gradient to a clip.

In all of them: log pi the log-prob of a token, A the advantage and w the importance weight of rollout i (1 when
`weights_B` is None), mu the policy that generated, reduce as `aggregation` and `denominator` say (see `reduce`).
Shapes: `logprobs_BL`, `behavior_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L); `advantages_B`, `weights_B`
(B,). Only `logprobs_BL` receives a gradient. Raises `DataError` for any other shape, `ConfigError` for an impossible
setting. Metrics: `ratio_metrics`; `clipped` counts tokens whose weight is not the ratio itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses.checks import check_finite, check_inputs, check_range
from ostinato.losses.objective import policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import Bound, Level, at_level, bounded_weights, masked, masked_log_ratio
from ostinato.losses.reduce import Aggregation


def truncated_importance(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    low: float = 0.0,
    high: float,
    level: Level = "token",
    bound: Bound = "cap",
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Policy gradient under truncated or masked importance weights.

        loss = -reduce(w_i sg(rho_it) A_i log pi(y_it)),     rho = the ratio pi / mu at its level, within [low, high]

    sg: no gradient. `level` and `bound`: see `at_level` and `bounded_weights`. Unbounded sequence weights are exact and
    of huge variance; the bound trades variance for bias. Shapes and symbols: this module's.
    Source: V-trace's policy gradient, arXiv 1802.01561; sequence weights capped at 8: VCPO, arXiv 2602.17616; masked
    token weights: IcePop, in arXiv 2510.18855.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    check_range("low", low, "high", high)
    log_ratio_BL = masked_log_ratio(logprobs_BL.detach(), behavior_logprobs_BL, mask_BL)
    leveled_BL = at_level(log_ratio_BL, mask_BL, level)
    rho_BL = bounded_weights(leveled_BL, low=low, high=high, bound=bound)
    return policy_loss(
        rho_BL * advantages_B.detach()[:, None] * masked(logprobs_BL, mask_BL),
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        clipped_BL=rho_BL != leveled_BL.exp(),
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


def cispo(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    clip_high: float,
    clip_low: float = 0.0,
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Clipped importance weights of tokens, every token keeps its gradient.

        loss = -reduce(w_i sg(clip(r_it, clip_low, clip_high)) A_i log pi(y_it)),       r = pi / mu

    `clip_high` bounds the ratio itself and has no default, because two conventions are in use: 1 + eps_high of the
    paper, and the bare number of ScaleRL and TRL; `PRESETS` has both. Shapes and symbols: this module's.
    Source: CISPO, MiniMax-M1, arXiv 2506.13585, equations 4 and 5.
    """
    return truncated_importance(
        logprobs_BL,
        behavior_logprobs_BL,
        advantages_B,
        mask_BL,
        low=clip_low,
        high=clip_high,
        aggregation=aggregation,
        weights_B=weights_B,
        denominator=denominator,
    )


def topr(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    level: Level = "sequence",
    negative_high: float = 1.0,
    aggregation: Aggregation = "sequence_sum",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Tapered off-policy REINFORCE: failures fade as the policy leaves them, successes count in full.

        loss = -reduce(w_i c_it A_i log pi(y_it)),     c = 1 where A > 0,  min(rho, negative_high) where A < 0

    rho: the detached ratio pi / mu of the completion (`level` "sequence", the paper) or of each token ("token", a
    released implementation). The paper's A is the reward, -1 or +1, without a baseline. Shapes and symbols: this
    module's. Source: TOPR, arXiv 2503.14286.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    check_range("0", 0.0, "negative_high", negative_high)
    log_ratio_BL = masked_log_ratio(logprobs_BL.detach(), behavior_logprobs_BL, mask_BL)
    leveled_BL = at_level(log_ratio_BL, mask_BL, level)
    tapered_BL = bounded_weights(leveled_BL, low=0.0, high=negative_high, bound="cap")
    positive_B1 = (advantages_B > 0)[:, None]
    weight_BL = torch.where(positive_B1, 1.0, tapered_BL)
    return policy_loss(
        weight_BL * advantages_B.detach()[:, None] * masked(logprobs_BL, mask_BL),
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        clipped_BL=~positive_B1 & (tapered_BL != leveled_BL.exp()),
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


def vespo(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """A smooth weight on the ratio of the whole completion, 1 at W = 1 and 0 at both ends.

        loss = -reduce(w_i sg(phi(W_i)) A_i log pi(y_it))
        phi(W) = W^k exp(lambda (1 - W)),        W_i = pi(y_i) / mu(y_i)

    (k, lambda) is `positive` where A >= 0 and `negative` where A < 0. Shapes and symbols: this module's; `clipped` is
    0. Source: VESPO, arXiv 2602.10693.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    for name, pair in (("positive", positive), ("negative", negative)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"{name} must be two numbers (k, lambda), got {pair!r}")
        for symbol, value in zip(("k", "lambda"), pair, strict=True):
            check_range(f"{symbol} of {name}", value, "infinity", math.inf)
            check_finite(f"{symbol} of {name}", value)
    log_ratio_BL = masked_log_ratio(logprobs_BL.detach(), behavior_logprobs_BL, mask_BL)
    log_w_BL = at_level(log_ratio_BL, mask_BL, "sequence")
    log_phi_BL = torch.where((advantages_B >= 0)[:, None], _log_phi(log_w_BL, *positive), _log_phi(log_w_BL, *negative))
    return policy_loss(
        log_phi_BL.exp() * advantages_B.detach()[:, None] * masked(logprobs_BL, mask_BL),
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


def _log_phi(log_w_BL: Tensor, k: float, rate: float) -> Tensor:
    return k * log_w_BL - rate * torch.expm1(log_w_BL)
