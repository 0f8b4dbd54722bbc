"""Trajectory balance: match the policy to the reference tilted by the reward, on data of any policy."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.errors import DataError
from ostinato.losses.checks import check_above, check_inputs
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import masked
from ostinato.losses.reduce import sequence_sum_mean


def trajectory_balance(
    logprobs_BL: Tensor,
    ref_logprobs_BL: Tensor,
    rewards_B: Tensor,
    group_B: Tensor,
    mask_BL: Tensor,
    *,
    beta: float,
    log_partition_B: Tensor | None = None,
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """Squared residual of pi(y) Z = ref(y) exp(R / beta), the partition function estimated within each group.

        loss = 1/B sum_i w_i (log Z_g(i) + log pi(y_i) - log ref(y_i) - R_i / beta)^2

    log Z_g: `log_partition_B`, or `log_partition` of this call; R the reward, w the importance weight of rollout i (1
    when `weights_B` is None); B rollouts, or `denominator`. No ratio: valid for completions of any policy. Give
    `log_partition_B` when micro-batches split groups. A rollout without tokens contributes nothing.

    Shapes: `logprobs_BL`, `ref_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L); `rewards_B`, the int64
    `group_B`, `log_partition_B`, `weights_B` (B,). Only `logprobs_BL` receives a gradient. Raises `DataError` for any
    other shape, `ConfigError` unless beta > 0. Metrics: `tokens`, and `residual_square_sum` over rollouts.
    Source: TBA, arXiv 2503.18929 (VarGrad variant).
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        ref_logprobs_BL=ref_logprobs_BL,
        rewards_B=rewards_B,
        group_B=group_B,
        log_partition_B=log_partition_B,
        weights_B=weights_B,
    )
    if log_partition_B is None:
        log_partition_B = log_partition(logprobs_BL, ref_logprobs_BL, rewards_B, group_B, mask_BL, beta=beta)
    gap_B = _log_ratio_to_tilted(logprobs_BL, ref_logprobs_BL, rewards_B, mask_BL, beta)
    trained_B1 = mask_BL.any(1, keepdim=True)
    square_B1 = (log_partition_B.detach() + gap_B).square()[:, None]
    weighted_B1 = square_B1 if weights_B is None else weights_B.detach()[:, None] * square_B1
    loss = sequence_sum_mean(weighted_B1, trained_B1, denominator=denominator)
    return LossOutput(
        loss, {"tokens": mask_BL.sum(), "residual_square_sum": masked(square_B1, trained_B1).sum().detach()}
    )


@torch.no_grad()
def log_partition(
    logprobs_BL: Tensor,
    ref_logprobs_BL: Tensor,
    rewards_B: Tensor,
    group_B: Tensor,
    mask_BL: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Mean over each rollout's group of log ref(y) - log pi(y) + R / beta, detached: (B,).

    Members without tokens do not count; a group of such members has 0. Arguments as in `trajectory_balance`. Raises
    `DataError` unless `group_B` is int64.
    """
    if group_B.dtype != torch.int64:
        raise DataError(f"group_B is {group_B.dtype}, expected torch.int64")
    estimate_B = -_log_ratio_to_tilted(logprobs_BL, ref_logprobs_BL, rewards_B, mask_BL, beta)
    trained_B = mask_BL.any(1)
    groups, place_B = torch.unique(group_B, return_inverse=True)
    total = estimate_B.new_zeros(len(groups)).index_add_(0, place_B, masked(estimate_B, trained_B))
    count = estimate_B.new_zeros(len(groups)).index_add_(0, place_B, trained_B.to(estimate_B.dtype))
    return (total / count.clamp(min=1))[place_B]


def _log_ratio_to_tilted(
    logprobs_BL: Tensor, ref_logprobs_BL: Tensor, rewards_B: Tensor, mask_BL: Tensor, beta: float
) -> Tensor:
    check_above("beta", beta, 0)
    difference_BL = masked(logprobs_BL, mask_BL) - masked(ref_logprobs_BL.detach(), mask_BL)
    return difference_BL.sum(1) - rewards_B.detach() / beta
