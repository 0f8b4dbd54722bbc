"""How each kind of loss is called with what a trainer knows, and which of them look at the whole batch first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses.adaptive_clip import staleness_scale
from ostinato.losses.decoupled import interpolated_proximal_logprobs
from ostinato.losses.inputs import LossInputs
from ostinato.losses.output import LossOutput, ratio_metrics
from ostinato.losses.ratios import masked_log_ratio
from ostinato.losses.second_moment import second_moment_bound
from ostinato.losses.trajectory_balance import log_partition

Loss = Callable[..., LossOutput]
Call = Callable[..., LossOutput]
"""(loss, inputs, **keywords of the loss) -> its output."""


def plain(loss: Loss, x: LossInputs, **keywords: Any) -> LossOutput:
    """A loss of the ratio to the policy that generated."""
    return loss(x.logprobs, x.behavior_logprobs, x.advantages, x.mask, **keywords)


def without_ratio(loss: Loss, x: LossInputs, **keywords: Any) -> LossOutput:
    """A loss that only measures with the policy that generated."""
    return loss(x.logprobs, x.advantages, x.mask, behavior_logprobs_BL=x.behavior_logprobs, **keywords)


def with_proximal(loss: Loss, x: LossInputs, **keywords: Any) -> LossOutput:
    """A loss around the proximal policy, interpolated from ages: it is one train step older than the trained one.

    A draw is trained on for one step, so a proximal policy recomputed at its start would be the trained one itself.
    """
    proximal_BL = interpolated_proximal_logprobs(
        x.logprobs,
        x.behavior_logprobs,
        version=0,
        proximal_version=-1,
        behavior_version_BL=-x.staleness[:, None],
    )
    return loss(x.logprobs, proximal_BL, x.behavior_logprobs, x.advantages, x.mask, **keywords)


def with_replayed(loss: Loss, x: LossInputs, **keywords: Any) -> LossOutput:
    """A loss around the proximal policy that treats fresh rollouts in another way."""
    return with_proximal(loss, x, replayed_B=x.replayed, **keywords)


def balanced(loss: Loss, x: LossInputs, **keywords: Any) -> LossOutput:
    """A loss of rewards and a reference, to whose metrics those of the ratio are added."""
    value, metrics = loss(x.logprobs, reference_of(x), x.advantages, x.group_id, x.mask, **keywords)
    log_ratio_BL = masked_log_ratio(x.logprobs.detach(), x.behavior_logprobs, x.mask)
    return LossOutput(value, ratio_metrics(log_ratio_BL, torch.zeros_like(x.mask), x.mask) | metrics)


def reference_of(x: LossInputs) -> Tensor:
    """The log-probs of the reference. Raises `ConfigError` where they are missing."""
    if x.ref_logprobs is None:
        raise ConfigError("this objective needs ref_logprobs, got None")
    return x.ref_logprobs


@dataclass(frozen=True, slots=True)
class BatchStatistic:
    """Something a loss takes from the batch of a whole optimizer step.

    `keyword`: the argument of the loss. `compute`: (inputs of the batch, **options) -> scalar, or (B,) in their order;
    it takes those arguments of the loss that `options` names.
    """

    keyword: str
    compute: Callable[..., Tensor]
    options: tuple[str, ...]


def _second_moment_bound(x: LossInputs, **options: Any) -> Tensor:
    log_ratio_BL = masked_log_ratio(x.logprobs, x.behavior_logprobs, x.mask)
    return second_moment_bound(log_ratio_BL, x.advantages, x.mask, **options)


def _staleness_scale(x: LossInputs, **options: Any) -> Tensor:
    log_ratio_BL = masked_log_ratio(x.logprobs, x.behavior_logprobs, x.mask)
    return staleness_scale(log_ratio_BL, x.mask, **options)


def _log_partition(x: LossInputs, **options: Any) -> Tensor:
    return log_partition(x.logprobs, reference_of(x), x.advantages, x.group_id, x.mask, **options)


SECOND_MOMENT = BatchStatistic("log_ratio_bound", _second_moment_bound, ("threshold", "variant"))
STALENESS_SCALE = BatchStatistic("scale", _staleness_scale, ("level", "quantile"))
LOG_PARTITION = BatchStatistic("log_partition_B", _log_partition, ("beta",))
