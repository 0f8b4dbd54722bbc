"""REINFORCE with a baseline: no ratio, no clip."""

from __future__ import annotations

from torch import Tensor

from ostinato.losses.checks import check_inputs
from ostinato.losses.objective import policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import masked, masked_log_ratio
from ostinato.losses.reduce import Aggregation


def reinforce(
    logprobs_BL: Tensor,
    rewards_B: Tensor,
    mask_BL: Tensor,
    *,
    baselines_B: Tensor | None = None,
    behavior_logprobs_BL: Tensor | None = None,
    weights_B: Tensor | None = None,
    aggregation: Aggregation = "sequence_sum",
    denominator: float | None = None,
) -> LossOutput:
    """Policy gradient of the reward above a baseline.

        loss = -reduce(w_i (R_i - b_i) log pi(y_it)),     by default  -1/B sum_i w_i (R_i - b_i) log pi(y_i)

    with reward R, baseline b (0 when `baselines_B` is None) and importance weight w of rollout i (1 when `weights_B` is
    None); a baseline that does not look at the completion it is subtracted for leaves the on-policy gradient unbiased.
    On stale data nothing corrects for mu: see `asymre` for the baseline to use then, `truncated_importance` and `topr`
    for corrections.

    Shapes: `logprobs_BL` and the bool `mask_BL` (B, L); `rewards_B`, `baselines_B`, `weights_B` (B,). Natural logs. The
    stored `behavior_logprobs_BL` (B, L) serve the metrics alone; without them `tokens` is the only one. Raises
    `DataError` for any other shape, `ConfigError` for another aggregation.
    Source: Williams 1992, https://doi.org/10.1007/BF00992696.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        rewards_B=rewards_B,
        baselines_B=baselines_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    advantages_B = (rewards_B if baselines_B is None else rewards_B - baselines_B).detach()
    log_ratio_BL = None
    if behavior_logprobs_BL is not None:
        log_ratio_BL = masked_log_ratio(logprobs_BL.detach(), behavior_logprobs_BL, mask_BL)
    return policy_loss(
        advantages_B[:, None] * masked(logprobs_BL, mask_BL),
        mask_BL,
        log_ratio_BL=log_ratio_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )
