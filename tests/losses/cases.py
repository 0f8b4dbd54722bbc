"""Every loss of the package under one signature, so that what all must hold is stated once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ostinato.losses import (
    PRESETS,
    LossOutput,
    asymre,
    centered_clip,
    cispo,
    clipped_surrogate,
    decoupled_ppo,
    gipo,
    grpo,
    kimi,
    kl_penalty,
    log_partition,
    m2po,
    masked_log_ratio,
    reinforce,
    sapo,
    sat,
    second_moment_bound,
    shaped_importance,
    staleness_scale,
    topr,
    trajectory_balance,
    truncated_importance,
    vespo,
)


@dataclass(frozen=True)
class Inputs:
    """What the losses take, by the suffix of their argument names; float64."""

    logprobs: Tensor
    behavior: Tensor
    proximal: Tensor
    ref: Tensor
    advantages: Tensor
    mask: Tensor
    weights: Tensor | None
    group: Tensor

    def rows(self, rows: Tensor) -> "Inputs":
        return Inputs(**{name: None if value is None else value[rows] for name, value in vars(self).items()})

    def at(self, logprobs: Tensor) -> "Inputs":
        return replace(self, logprobs=logprobs)


def inputs(spread: float, *, seed: int = 3, rows: int = 8, length: int = 5) -> Inputs:
    """Log-ratios within ±spread; rollout 0 has no token under the mask; groups of 4; rewards as advantages."""
    rng = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, dtype=torch.float64)

    behavior = -3.0 * uniform(rows, length) - 2.0
    mask = torch.rand(rows, length, generator=rng) < 0.7
    mask[:1] = False
    return Inputs(
        logprobs=(behavior + (2 * uniform(rows, length) - 1) * spread).requires_grad_(),
        behavior=behavior,
        proximal=behavior + (2 * uniform(rows, length) - 1) * spread,
        ref=behavior + (2 * uniform(rows, length) - 1) * spread,
        advantages=torch.randn(rows, generator=rng, dtype=torch.float64),
        mask=mask,
        weights=uniform(rows) + 0.5,
        group=torch.arange(rows) // 4,
    )


TOKENS, MEANS, SUMS = "tokens", "means of rollouts", "sums of rollouts"
Statistic = Callable[[Inputs], Tensor | None]
Loss = Callable[[Inputs, float | None, Tensor | None], LossOutput]


@dataclass(frozen=True)
class Case:
    """A loss; what it averages; whether autograd is the derivative of its value (nothing in it is detached that depends
    on log pi); its gradient at pi = mu = prox over the on-policy one (None: not a multiple of it)."""

    loss: Loss
    averages: str = TOKENS
    smooth: bool = True
    on_policy: float | None = 1.0
    statistic: Statistic = lambda x: None


def plain(loss: Callable[..., LossOutput]) -> Loss:
    def call(x: Inputs, denominator: float | None, statistic: Tensor | None) -> LossOutput:
        return loss(x.logprobs, x.behavior, x.advantages, x.mask, weights_B=x.weights, denominator=denominator)

    return call


def with_ref(loss: Callable[..., LossOutput]) -> Loss:
    def call(x: Inputs, denominator: float | None, statistic: Tensor | None) -> LossOutput:
        return plain(partial(loss, ref_logprobs_BL=x.ref))(x, denominator, statistic)

    return call


def with_proximal(loss: Callable[..., LossOutput]) -> Loss:
    def call(x: Inputs, denominator: float | None, statistic: Tensor | None) -> LossOutput:
        options = {"weights_B": x.weights, "denominator": denominator}
        return loss(x.logprobs, x.proximal, x.behavior, x.advantages, x.mask, **options)

    return call


def without_ratio(loss: Callable[..., LossOutput]) -> Loss:
    def call(x: Inputs, denominator: float | None, statistic: Tensor | None) -> LossOutput:
        options = {"behavior_logprobs_BL": x.behavior, "weights_B": x.weights, "denominator": denominator}
        return loss(x.logprobs, x.advantages, x.mask, **options)

    return call


def penalty(**options: object) -> Loss:
    def call(x: Inputs, denominator: float | None, statistic: Tensor | None) -> LossOutput:
        shared = {"behavior_logprobs_BL": x.behavior, "weights_B": x.weights, "denominator": denominator}
        return kl_penalty(x.logprobs, x.ref, x.mask, **shared, **options)

    return call


def second_moment(variant: str) -> Case:
    def statistic(x: Inputs) -> Tensor:
        log_ratio = masked_log_ratio(x.logprobs.detach(), x.behavior, x.mask)
        return second_moment_bound(log_ratio, x.advantages, x.mask, threshold=0.01, variant=variant)

    def call(x: Inputs, denominator: float | None, bound: Tensor | None) -> LossOutput:
        loss = partial(m2po, threshold=0.01, variant=variant, log_ratio_bound=bound)
        return plain(loss)(x, denominator, None)

    return Case(call, statistic=statistic)


def adaptive(level: str) -> Case:
    def statistic(x: Inputs) -> Tensor:
        log_ratio = masked_log_ratio(x.logprobs.detach(), x.behavior, x.mask)
        return staleness_scale(log_ratio, x.mask, level=level, quantile=0.5)

    def call(x: Inputs, denominator: float | None, scale: Tensor | None) -> LossOutput:
        return plain(partial(sat, level=level, scale=scale, quantile=0.5))(x, denominator, None)

    return Case(call, smooth=False, statistic=statistic)


def balance_statistic(x: Inputs) -> Tensor:
    return log_partition(x.logprobs.detach(), x.ref, x.advantages, x.group, x.mask, beta=0.5)


def balance(x: Inputs, denominator: float | None, statistic: Tensor | None) -> LossOutput:
    options = {"log_partition_B": statistic, "weights_B": x.weights, "denominator": denominator}
    return trajectory_balance(x.logprobs, x.ref, x.advantages, x.group, x.mask, beta=0.5, **options)


CASES: dict[str, Case] = {
    "grpo": Case(plain(grpo)),
    "preset grpo": Case(plain(PRESETS["grpo"]), MEANS),
    "preset dapo": Case(plain(PRESETS["dapo"])),
    "preset gspo": Case(plain(PRESETS["gspo"]), MEANS),
    "preset deepseek_v32": Case(plain(PRESETS["deepseek_v32"]), MEANS),
    "preset advantage_prioritized": Case(plain(PRESETS["advantage_prioritized"])),
    "preset cispo_minimax": Case(plain(PRESETS["cispo_minimax"]), smooth=False),
    "preset cispo_scalerl": Case(plain(PRESETS["cispo_scalerl"]), smooth=False),
    "sequence ratio": Case(
        plain(partial(clipped_surrogate, level="sequence", dual_clip=1.5, aggregation="sequence_mean")), SUMS
    ),
    "k1 penalty": Case(with_ref(partial(clipped_surrogate, kl_coefficient=0.3, kl_estimator="k1")), on_policy=None),
    "k2 penalty": Case(
        with_ref(partial(clipped_surrogate, kl_coefficient=0.3, kl_estimator="k2", kl_ratio=False)), on_policy=None
    ),
    "k3 penalty": Case(with_ref(partial(clipped_surrogate, kl_coefficient=0.3)), on_policy=None),
    "kl k1": Case(penalty(estimator="k1"), on_policy=None),
    "kl k2": Case(penalty(estimator="k2"), smooth=False, on_policy=None),
    "kl k3": Case(penalty(estimator="k3", aggregation="sequence_mean"), MEANS, on_policy=None),
    "reinforce": Case(without_ratio(reinforce), SUMS),
    "kimi": Case(plain(kimi), SUMS),
    "kimi tokens": Case(plain(partial(kimi, level="token", aggregation="token_mean"))),
    "asymre": Case(without_ratio(asymre), SUMS),
    "cispo": Case(plain(partial(cispo, clip_low=0.9, clip_high=1.1, aggregation="sequence_mean")), MEANS, False),
    "truncated tokens": Case(plain(partial(truncated_importance, high=1.1)), smooth=False),
    "masked sequences": Case(
        plain(
            partial(truncated_importance, low=0.5, high=2.0, level="sequence", bound="mask", aggregation="sequence_sum")
        ),
        SUMS,
        False,
    ),
    "topr": Case(plain(topr), SUMS, False),
    "topr tokens": Case(plain(partial(topr, level="token", aggregation="token_mean")), smooth=False),
    "vespo": Case(plain(vespo), smooth=False),
    "sapo": Case(plain(sapo), MEANS),
    "gipo": Case(plain(partial(gipo, sigma=0.3)), smooth=False),
    "shaped": Case(plain(shaped_importance), on_policy=0.1 / 1.1**2),
    "decoupled": Case(with_proximal(decoupled_ppo)),
    "decoupled, masked sequences": Case(
        with_proximal(partial(decoupled_ppo, level="sequence", low=0.8, high=1.5, bound="mask", dual_clip=3.0))
    ),
    "centered": Case(with_proximal(centered_clip)),
    "m2po mask": second_moment("mask"),
    "m2po cap": second_moment("cap"),
    "m2po released_cap": second_moment("released_cap"),
    "sat": adaptive("token"),
    "sat sequences": adaptive("geometric"),
    "trajectory balance": Case(balance, SUMS, on_policy=None, statistic=balance_statistic),
}


def one_token(loss: Callable[..., LossOutput], ratio: float, advantage: float, **options: object) -> tuple[float, ...]:
    """Loss, gradient with respect to log pi, and clipped count of a single token with log mu = -3."""
    logprobs = torch.tensor([[math.log(ratio) - 3.0]], dtype=torch.float64, requires_grad=True)
    behavior, mask = torch.full((1, 1), -3.0, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    value, metrics = loss(logprobs, behavior, torch.tensor([advantage], dtype=torch.float64), mask, **options)
    return value.item(), torch.autograd.grad(value, logprobs)[0].item(), metrics["clipped"].item()
