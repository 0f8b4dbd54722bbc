"""A step shorter than the learning rate asks for, when the batch is worth fewer samples than it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError
from ostinato.setting_checks import check_choice, check_finite
from ostinato.stats import effective_sample_fraction
from ostinato.stats.off_policy import checked_figures

Rule = Literal["sqrt", "linear"]


@dataclass(frozen=True, slots=True)
class LearningRateSettings:
    """`base`: effective sample fraction, in (0, 1], from which on the learning rate is whole; `rule`: see the function.

    Published: 1.0 for single-turn tasks, 0.55 for multi-turn ones. Raises `ConfigError` for anything else.
    """

    base: float = 1.0
    rule: Rule = "sqrt"

    def __post_init__(self) -> None:
        if not 0 < check_finite("base", self.base) <= 1:
            raise ConfigError(f"base must be within (0, 1], got {self.base}")
        check_choice("rule", self.rule, get_args(Rule))


def learning_rate_scale(figures: Mapping[str, NDArray[np.float64]], settings: LearningRateSettings) -> float:
    """What to multiply the learning rate of this one optimizer step by, in (0, 1].

        sqrt      sqrt(min(1, ESS / base))           linear      min(1, ESS / base)

    ESS: effective sample fraction of the ratios of completions (`stats.effective_sample_fraction`), not clipped by the
    loss, over all rollouts of the optimizer step that have tokens; 1 without any. `figures` as for `stats.diagnose`,
    whose errors are raised. Give the optimizer its own learning rate back after the step.
    Source: VCPO, arXiv 2602.17616.
    """
    columns = checked_figures(figures, len(figures.get("tokens", ())))
    log_weights = columns["log_ratio_sum"][columns["tokens"] > 0]
    if not len(log_weights):
        return 1.0
    share = min(1.0, effective_sample_fraction(log_weights) / settings.base)
    return math.sqrt(share) if settings.rule == "sqrt" else share
