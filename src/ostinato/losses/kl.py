"""The divergence of the policy from a reference, estimated on tokens that another policy drew."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ostinato.losses.checks import check_choice, check_inputs
from ostinato.losses.objective import policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import masked_log_ratio
from ostinato.losses.reduce import Aggregation

KLEstimator = Literal["k1", "k2", "k3"]


def kl_terms(
    logprobs_BL: Tensor,
    ref_logprobs_BL: Tensor,
    mask_BL: Tensor,
    *,
    estimator: KLEstimator,
    ratio_BL: Tensor | None = None,
) -> Tensor:
    """What each token adds to an estimate of KL(pi || ref), 0 outside the mask: (B, L), with a gradient.

        x = log pi - log ref          k1 = x          k2 = x^2 / 2          k3 = exp(-x) - 1 + x >= 0

    On tokens of another policy mu the estimate carries r = pi / mu (`ratio_BL`, with its gradient): r k1 and r k3 are
    unbiased, and their gradients are unbiased for the gradient of the divergence. For k2, whose value is biased, that
    holds with r detached, so r is detached there. Without `ratio_BL` the terms stand alone: as a loss, k1 then has an
    expected gradient of 0 and k3 that of KL(ref || pi), even on data of pi itself.
    Raises `ConfigError` for another estimator.
    Source: http://joschu.net/blog/kl-approx.html; with the ratio: DeepSeek-V3.2, arXiv 2512.02556.
    """
    check_choice("KL estimator", estimator, get_args(KLEstimator))
    x_BL = masked_log_ratio(logprobs_BL, ref_logprobs_BL, mask_BL)
    if estimator == "k2":
        terms_BL = x_BL.square() / 2
        return terms_BL if ratio_BL is None else ratio_BL.detach() * terms_BL
    terms_BL = x_BL if estimator == "k1" else torch.expm1(-x_BL) + x_BL
    return terms_BL if ratio_BL is None else ratio_BL * terms_BL


def kl_penalty(
    logprobs_BL: Tensor,
    ref_logprobs_BL: Tensor,
    mask_BL: Tensor,
    *,
    behavior_logprobs_BL: Tensor | None = None,
    estimator: KLEstimator = "k3",
    weights_B: Tensor | None = None,
    aggregation: Aggregation = "token_mean",
    denominator: float | None = None,
) -> LossOutput:
    """A penalty to add, times its coefficient, to any loss that is reduced in the same way.

        loss = reduce(w_i r_it k(log pi(y_it) - log ref(y_it))),       r_it = pi(y_it) / mu(y_it)

    with the estimator k of `kl_terms`, importance weight w of rollout i (1 when `weights_B` is None), and r = 1 without
    `behavior_logprobs_BL`. Only `logprobs_BL` receives a gradient.

    Shapes: `logprobs_BL`, `ref_logprobs_BL`, `behavior_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L);
    `weights_B` (B,). Raises `DataError` for any other shape, `ConfigError` for other names. Metrics: the ratio to the
    behavior policy where it is given, and `kl_ref_sum`, the sum of the terms, unweighted.
    Source: GRPO, arXiv 2402.03300, equation 4 (k3 without ratio); see `kl_terms`.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        ref_logprobs_BL=ref_logprobs_BL,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    log_ratio_BL = None
    if behavior_logprobs_BL is not None:
        log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    ratio_BL = None if log_ratio_BL is None else log_ratio_BL.exp()
    terms_BL = kl_terms(logprobs_BL, ref_logprobs_BL, mask_BL, estimator=estimator, ratio_BL=ratio_BL)
    loss, metrics = policy_loss(
        -terms_BL,
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )
    return LossOutput(loss, metrics | {"kl_ref_sum": terms_BL.detach().sum()})
