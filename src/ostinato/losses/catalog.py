"""Losses by name, ready for a trainer: function, arguments, advantage, denominator, and what must be known beforehand.

chosen = objective("m2po", {"threshold": 0.02})
advantages_n = chosen.advantages(rollouts)
denominator = chosen.denominator(rollouts, max_new_tokens=256)          # rollouts: the whole optimizer step
statistics = chosen.statistics(micro_batches)                           # without gradient, one for each of them
loss, metrics = chosen(micro_batch, denominator, statistic)             # micro-batches add up
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.config import LossConfig
from ostinato.config.losses import SECTION_KEYS
from ostinato.errors import ConfigError
from ostinato.loss_advantages import loss_advantages
from ostinato.losses.adaptive_clip import continuous_hill, hill, inverse_square, sat
from ostinato.losses.asymre import asymre
from ostinato.losses.calls import (
    LOG_PARTITION,
    SECOND_MOMENT,
    STALENESS_SCALE,
    BatchStatistic,
    Call,
    Loss,
    balanced,
    plain,
    reference_of,
    with_proximal,
    with_replayed,
    without_ratio,
)
from ostinato.losses.clipped import clipped_surrogate
from ostinato.losses.decoupled import centered_clip, decoupled_ppo
from ostinato.losses.gates import gipo, sapo, shaped_importance
from ostinato.losses.grpo import grpo
from ostinato.losses.inputs import LossInputs, joined
from ostinato.losses.kimi import kimi
from ostinato.losses.kl import KLEstimator, kl_penalty
from ostinato.losses.output import LossOutput
from ostinato.losses.presets import PRESETS
from ostinato.losses.reduce import Aggregation
from ostinato.losses.reinforce import reinforce
from ostinato.losses.second_moment import m2po
from ostinato.losses.trajectory_balance import trajectory_balance
from ostinato.losses.weighted import cispo, topr, truncated_importance, vespo
from ostinato.rollouts import Rollouts

KERNELS = {"hill": hill, "continuous_hill": continuous_hill, "inverse_square": inverse_square}


@dataclass(frozen=True, slots=True)
class Entry:
    """A loss of the catalog. `aggregation`: that of a function without an argument of this name."""

    function: Loss
    call: Call = plain
    statistic: BatchStatistic | None = None
    aggregation: Aggregation | None = None
    needs_reference: bool = False

    def aggregation_of(self, arguments: Mapping[str, Any]) -> Aggregation:
        """How the loss is reduced under these arguments."""
        own = self.aggregation or inspect.signature(self.function).parameters["aggregation"].default
        chosen: Aggregation = arguments.get("aggregation", own)
        return chosen


CATALOG: Mapping[str, Entry] = {
    "grpo": Entry(grpo, aggregation="token_mean"),
    "asymre": Entry(asymre, without_ratio, aggregation="sequence_sum"),
    "grpo_paper": Entry(PRESETS["grpo"]),
    **{name: Entry(preset) for name, preset in PRESETS.items() if name != "grpo"},
    "clipped_surrogate": Entry(clipped_surrogate),
    "decoupled_ppo": Entry(decoupled_ppo, with_proximal),
    "centered_clip": Entry(centered_clip, with_replayed),
    "sat": Entry(sat, statistic=STALENESS_SCALE),
    "m2po": Entry(m2po, statistic=SECOND_MOMENT),
    "sapo": Entry(sapo),
    "gipo": Entry(gipo),
    "shaped_importance": Entry(shaped_importance),
    "reinforce": Entry(reinforce, without_ratio),
    "truncated_importance": Entry(truncated_importance),
    "cispo": Entry(cispo),
    "topr": Entry(topr),
    "vespo": Entry(vespo),
    "kimi": Entry(kimi),
    "trajectory_balance": Entry(trajectory_balance, balanced, LOG_PARTITION, "sequence_sum", needs_reference=True),
}
"""Every loss that `ostinato.config.losses.LOSSES` lists."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss with its arguments, and the KL to a reference if one is wanted.

    `advantage`, `shift`, `baseline`: see `ostinato.loss_advantages`. `arguments`: keywords of the loss.
    """

    name: str
    entry: Entry
    arguments: Mapping[str, Any]
    advantage: str
    shift: float
    baseline: float
    kl_coefficient: float = 0.0
    kl_estimator: KLEstimator = "k3"

    @classmethod
    def of(cls, loss: LossConfig) -> Objective:
        """The objective of a recipe."""
        arguments = loss.arguments()
        if "kernel" in arguments:
            arguments["kernel"] = KERNELS[arguments["kernel"]]
        return cls(
            loss.name,
            CATALOG[loss.name],
            arguments,
            loss.advantage_kind,
            **loss.advantage_options,
            kl_coefficient=loss.kl_coefficient,
            kl_estimator=loss.kl_estimator or "k3",  # type: ignore[arg-type]
        )

    @property
    def aggregation(self) -> Aggregation:
        """How values of tokens become one number; see `losses.reduce`."""
        return self.entry.aggregation_of(self.arguments)

    @property
    def needs_reference(self) -> bool:
        """Whether `LossInputs.ref_logprobs` is read."""
        return self.entry.needs_reference or self.kl_coefficient > 0

    @property
    def needs_statistics(self) -> bool:
        """Whether the loss looks at the whole batch before the first gradient, for micro-batches to add up."""
        return self.entry.statistic is not None

    def advantages(self, rollouts: Rollouts) -> NDArray[np.float64]:
        """One advantage a rollout, from what is stored in each: float64 (n,)."""
        return loss_advantages(rollouts, self.advantage, shift=self.shift, baseline=self.baseline)

    def denominator(self, rollouts: Rollouts, *, max_new_tokens: int | None) -> float:
        """What the sum over the batch of an optimizer step is divided by: its tokens under the mask, its rollouts, or
        (`constant`) its rollouts times the longest completion allowed, which then must be given."""
        if self.aggregation == "token_mean":
            return float(rollouts.loss_mask.sum())
        if self.aggregation != "constant":
            return float(len(rollouts))
        self.check_constant(max_new_tokens)
        return float(len(rollouts) * (max_new_tokens or 1))

    def check_constant(self, max_new_tokens: int | None) -> None:
        """Raise `ConfigError` when the loss divides by the longest completion allowed and that is not given."""
        if self.aggregation == "constant" and not max_new_tokens:
            raise ConfigError(f"loss {self.name!r} divides by a constant: give max_new_tokens, got {max_new_tokens}")

    @torch.no_grad()
    def statistics(self, parts: Sequence[LossInputs]) -> list[Tensor | None]:
        """What the loss takes from the whole batch, given in its micro-batches: the share of each of them."""
        statistic = self.entry.statistic
        if statistic is None or not parts:
            return [None] * len(parts)
        options = {name: self.arguments[name] for name in statistic.options if name in self.arguments}
        value = statistic.compute(joined(parts), **options)
        if value.ndim == 0:
            return [value] * len(parts)
        return list(torch.split(value, [len(part.mask) for part in parts]))

    def __call__(self, x: LossInputs, denominator: float, statistic: Tensor | None = None) -> LossOutput:
        """Loss and metrics of a micro-batch. Without its `statistic` a loss takes that of the micro-batch.

        Metrics: those of the loss, and `kl_ref_sum` with a KL to the reference. Raises `DataError` for other shapes.
        """
        keywords = {**self.arguments, "weights_B": x.weights, "denominator": denominator}
        if statistic is not None and self.entry.statistic is not None:
            keywords[self.entry.statistic.keyword] = statistic
        output = self.entry.call(self.entry.function, x, **keywords)
        return self._with_penalty(output, x, denominator) if self.kl_coefficient else output

    def _with_penalty(self, output: LossOutput, x: LossInputs, denominator: float) -> LossOutput:
        penalty, metrics = kl_penalty(
            x.logprobs,
            reference_of(x),
            x.mask,
            behavior_logprobs_BL=x.behavior_logprobs,
            estimator=self.kl_estimator,
            weights_B=x.weights,
            aggregation=self.aggregation,
            denominator=denominator,
        )
        return LossOutput(
            output.loss + self.kl_coefficient * penalty, output.metrics | {"kl_ref_sum": metrics["kl_ref_sum"]}
        )


def objective(name: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Objective:
    """A loss by name with its options; `settings`: fields of `LossConfig` (advantage, kl_coefficient, ...).

    Raises `ConfigError` for a name, an option or a value that is unknown or impossible.
    """
    rest = dict(options or {})
    section = {key: rest.pop(key) for key in SECTION_KEYS if key in rest}
    return Objective.of(LossConfig(name=name, options=rest, **section, **settings))
