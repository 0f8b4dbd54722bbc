"""The clipped surrogate with every choice that GRPO and its relatives make differently."""

from __future__ import annotations

from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses.checks import check_above, check_clip, check_finite, check_inputs
from ostinato.losses.kl import KLEstimator, kl_terms
from ostinato.losses.masks import sequence_mask
from ostinato.losses.objective import clipped_objective, policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import Level, at_level, masked, masked_log_ratio
from ostinato.losses.reduce import Aggregation


def clipped_surrogate(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    level: Level = "token",
    clip_low: float = 0.8,
    clip_high: float = 1.2,
    dual_clip: float | None = None,
    sequence_mask_delta: float | None = None,
    ref_logprobs_BL: Tensor | None = None,
    kl_coefficient: float = 0.0,
    kl_estimator: KLEstimator = "k3",
    kl_ratio: bool = True,
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Clipped importance-weighted policy loss; GRPO, DAPO, Dr. GRPO, GSPO, DeepSeek-V3.2 are argument lists of it.

        loss = -reduce(w_i [M_i clipped(r_it, A_i) - beta k_it])
        clipped(r, A) = min(r A, clip(r, clip_low, clip_high) A),  and not below dual_clip A where A < 0

    r: the ratio pi / mu at its `level` (`at_level`); A: advantage; w: importance weight of rollout i (1 when None);
    M_i: 0 where `sequence_mask` drops rollout i; beta k: `kl_coefficient` times `kl_terms`, with the ratio r unless
    `kl_ratio` is False; reduce: `aggregation` and `denominator`, see `reduce`. Dropped tokens count in denominators.

    Shapes: `logprobs_BL`, `behavior_logprobs_BL`, `ref_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L);
    `advantages_B`, `weights_B` (B,). Only `logprobs_BL` receives a gradient. Raises `DataError` for any other shape,
    `ConfigError` for an impossible setting. Metrics: `ratio_metrics`, and `kl_ref_sum` with a reference.
    Sources: `grpo`, and those of `PRESETS`.
    """
    others_BL = {"behavior_logprobs_BL": behavior_logprobs_BL, "ref_logprobs_BL": ref_logprobs_BL}
    check_inputs(logprobs_BL, mask_BL, advantages_B=advantages_B, weights_B=weights_B, **others_BL)
    _check_settings(clip_low, clip_high, dual_clip, kl_coefficient, ref_logprobs_BL)
    log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    ratio_BL = at_level(log_ratio_BL, mask_BL, level).exp()
    objective_BL, clipped_BL = clipped_objective(ratio_BL, advantages_B, clip_low, clip_high, dual_clip=dual_clip)
    if sequence_mask_delta is not None:
        kept_B1 = sequence_mask(log_ratio_BL, advantages_B, mask_BL, delta=sequence_mask_delta)[:, None]
        objective_BL, clipped_BL = masked(objective_BL, kept_B1), clipped_BL | ~kept_B1
    extra = {}
    if ref_logprobs_BL is not None:
        on_stale = ratio_BL if kl_ratio else None
        terms_BL = kl_terms(logprobs_BL, ref_logprobs_BL, mask_BL, estimator=kl_estimator, ratio_BL=on_stale)
        objective_BL = objective_BL - kl_coefficient * terms_BL
        extra["kl_ref_sum"] = terms_BL.detach().sum()
    loss, metrics = policy_loss(
        objective_BL,
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        clipped_BL=clipped_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )
    return LossOutput(loss, metrics | extra)


def _check_settings(
    clip_low: float, clip_high: float, dual_clip: float | None, kl_coefficient: float, ref_logprobs_BL: Tensor | None
) -> None:
    check_clip(clip_low, clip_high)
    if dual_clip is not None:
        check_above("dual_clip", dual_clip, clip_high)
    check_finite("kl_coefficient", kl_coefficient)
    if kl_coefficient < 0:
        raise ConfigError(f"kl_coefficient must be at least 0, got {kl_coefficient}")
    if kl_coefficient and ref_logprobs_BL is None:
        raise ConfigError(f"kl_coefficient {kl_coefficient} needs ref_logprobs_BL, got None")
