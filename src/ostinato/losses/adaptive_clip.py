"""Clip bounds that the batch sets: tighter for stale tokens (SAT), wider until positives weigh enough (BAPO)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses.checks import check_above, check_clip, check_finite, check_inputs, check_range
from ostinato.losses.objective import clipped_objective, policy_loss
from ostinato.losses.output import LossOutput
from ostinato.losses.ratios import Level, at_level, masked_log_ratio
from ostinato.losses.reduce import Aggregation

SMALLEST_STEP = 1e-6
"""Of the search of `balanced_clip`: shorter ones would take for ever, or be rounded away."""

Kernel = Callable[[Tensor], Tensor]
"""From x = |log r| / q >= 1 to the share of the clip's half-width that remains, within [0, 1]; element by element."""


def hill(x: Tensor) -> Tensor:
    """1 / (1 + x^2): the Hill function as it stands; falls from 1 to 1/2 at x = 1."""
    return 1 / (1 + x.square())


def continuous_hill(x: Tensor) -> Tensor:
    """2 / (1 + x^2): the Hill function scaled to 1 at x = 1."""
    return 2 / (1 + x.square())


def inverse_square(x: Tensor) -> Tensor:
    """1 / x^2."""
    return x.square().reciprocal()


@torch.no_grad()
def staleness_scale(log_ratio_BL: Tensor, mask_BL: Tensor, *, level: Level = "token", quantile: float = 0.9) -> Tensor:
    """The quantile of |log r| over the tokens under the mask, or over the rollouts that have any: scalar, 0 without.

    `log_ratio_BL` comes from `masked_log_ratio`. It is a statistic of a batch: compute it over the whole batch when
    micro-batches have to add up. Raises `ConfigError` unless 0 <= quantile <= 1.
    """
    if not isinstance(quantile, float | int) or not 0 <= quantile <= 1:
        raise ConfigError(f"quantile must be within [0, 1], got {quantile!r}")
    sizes_BL = at_level(log_ratio_BL, mask_BL, level).abs()
    first_BL = mask_BL & (mask_BL.cumsum(1) == 1)  # every token of a rollout has the rollout's own ratio
    sizes = sizes_BL[mask_BL if level == "token" else first_BL]
    return _quantile(sizes, quantile) if len(sizes) else sizes_BL.new_zeros(())


def _quantile(values: Tensor, quantile: float) -> Tensor:
    """`torch.quantile`, which takes no more than 2^24 values and no half precision."""
    place = quantile * (len(values) - 1)
    below = math.floor(place)
    near = values.sort().values[below : below + 2]
    return torch.lerp(near[0], near[-1], place - below)


def sat(
    logprobs_BL: Tensor,
    behavior_logprobs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    clip_low: float = 0.8,
    clip_high: float = 1.2,
    kernel: Kernel = continuous_hill,
    quantile: float = 0.9,
    scale: Tensor | None = None,
    level: Level = "token",
    aggregation: Aggregation = "token_mean",
    weights_B: Tensor | None = None,
    denominator: float | None = None,
) -> LossOutput:
    """The clip of PPO, contracted for the tokens that have moved furthest, on the side to which they have moved.

        loss = -reduce(w_i min(r_it A_i, clip(r_it, 1 - (1 - clip_low) c_it, 1 + (clip_high - 1) c'_it) A_i))
        d = sg(log r);   c' = kernel(|d| / q) where d > q, else 1;     c = kernel(|d| / q) where d < -q, else 1

    r: the ratio pi / mu at its `level`; q: `scale`, or `staleness_scale` of this call; A the advantage and w the
    importance weight of rollout i (1 when `weights_B` is None). The paper's kernel was not found: three candidates are
    here, any function within [0, 1] is accepted. With a kernel of 1 this is PPO.

    Shapes: `logprobs_BL`, `behavior_logprobs_BL` (natural logs) and the bool `mask_BL` (B, L); `advantages_B`,
    `weights_B` (B,); `scale` scalar. Only `logprobs_BL` receives a gradient. Raises `DataError` for any other shape,
    `ConfigError` for an impossible setting. Source: SAT, arXiv 2607.18722.
    """
    check_inputs(
        logprobs_BL,
        mask_BL,
        advantages_B=advantages_B,
        behavior_logprobs_BL=behavior_logprobs_BL,
        weights_B=weights_B,
    )
    check_clip(clip_low, clip_high)
    _check_kernel(kernel)
    token_log_ratio_BL = masked_log_ratio(logprobs_BL, behavior_logprobs_BL, mask_BL)
    log_ratio_BL = at_level(token_log_ratio_BL, mask_BL, level)
    q = staleness_scale(token_log_ratio_BL, mask_BL, level=level, quantile=quantile) if scale is None else scale
    low_BL, high_BL = contracted_bounds(log_ratio_BL, q, clip_low, clip_high, kernel)
    objective_BL, clipped_BL = clipped_objective(log_ratio_BL.exp(), advantages_B, low_BL, high_BL)
    return policy_loss(
        objective_BL,
        mask_BL,
        log_ratio_BL=token_log_ratio_BL,
        clipped_BL=clipped_BL,
        weights_B=weights_B,
        aggregation=aggregation,
        denominator=denominator,
    )


@torch.no_grad()
def contracted_bounds(
    log_ratio_BL: Tensor, scale: Tensor, clip_low: float, clip_high: float, kernel: Kernel
) -> tuple[Tensor, Tensor]:
    """Lower and upper bound of each token's ratio, inside [clip_low, clip_high]: two tensors (B, L); see `sat`."""
    sizes_BL = log_ratio_BL.abs()
    stale_BL = (sizes_BL > scale) & (scale > 0)
    share_BL = torch.where(stale_BL, kernel(torch.where(stale_BL, sizes_BL / scale, 1.0)), 1.0)
    low_BL = 1 - (1 - clip_low) * torch.where(log_ratio_BL < 0, share_BL, 1.0)
    high_BL = 1 + (clip_high - 1) * torch.where(log_ratio_BL > 0, share_BL, 1.0)
    return low_BL, high_BL


def _check_kernel(kernel: Kernel) -> None:
    if not callable(kernel):
        raise ConfigError(f"kernel must be a function of |log r| / q, got {kernel!r}")
    probe = torch.tensor([1.0, 1.1, 1.5, 2.0, 10.0, 1e3])
    share = kernel(probe)
    if not ((share >= 0) & (share <= 1)).all():
        raise ConfigError(
            f"kernel must stay within [0, 1], got {[round(v, 4) for v in share.tolist()]} at {probe.tolist()}"
        )


@torch.no_grad()
def balanced_clip(
    log_ratio_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    *,
    target: float = 1.0,
    low: tuple[float, float] = (0.6, 0.8),
    high: tuple[float, float] = (1.2, 2.0),
    step: float = 0.05,
) -> tuple[float, float]:
    """`clip_low` and `clip_high` for `clipped_surrogate`, chosen so that positive advantages weigh enough.

        pos = sum_{A >= 0} min(r, clip_high) A,        neg = sum_{A < 0} max(r, clip_low) |A|

    While pos < target neg, `clip_low` rises by `step` from the first to the second of `low`, then `clip_high` likewise.
    By this count a higher `clip_low` can only raise neg, so its search always runs to the end: only `clip_high` helps.
    `target` is pos / neg; a positive share s is s / (1 - s). Call it once a step, on the whole batch. `log_ratio_BL`
    comes from `masked_log_ratio`. Raises `ConfigError` for a target that is not above 0, a step that is not
    above 1e-6, or ends of `low` or `high` that do not rise from 0 to a finite number.
    Source: BAPO (Balanced), arXiv 2510.18927, released code; its dual clip is 3.
    """
    check_above("step", step, SMALLEST_STEP)
    for name, (start, end) in (("low", low), ("high", high)):
        check_range(f"start of {name}", start, f"end of {name}", end)
        check_finite(f"end of {name}", end)
    check_above("target", target, 0)
    ratio, advantages = log_ratio_BL.exp()[mask_BL], advantages_B[:, None].expand_as(mask_BL)[mask_BL]
    positive = advantages >= 0

    def short_of_target(clip_low: float, clip_high: float) -> bool:
        pos = (ratio.clamp(max=clip_high) * advantages)[positive].sum()
        neg = -(ratio.clamp(min=clip_low) * advantages)[~positive].sum()
        return bool(pos < target * neg)

    (clip_low, low_end), (clip_high, high_end) = low, high
    while short_of_target(clip_low, clip_high) and clip_low < low_end:
        clip_low = min(round(clip_low + step, 12), low_end)
    while short_of_target(clip_low, clip_high) and clip_high < high_end:
        clip_high = min(round(clip_high + step, 12), high_end)
    return clip_low, clip_high
