"""Admission: which new rollouts are worth keeping? The others get rollout id -1 and are counted by the rule's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import check_finite
from ostinato.usable import rows_holding, usable_rollouts


class Admission(Protocol):
    """Says which rollouts may enter; looks at nothing but them."""

    @property
    def name(self) -> str:
        """What the refused ones are counted as."""

    def __call__(self, rollouts: Rollouts) -> NDArray[np.bool_]:
        """True where the rollout may enter, (n,)."""


@dataclass(frozen=True, slots=True)
class Informative:
    """Rollouts whose group has rewards that differ (DAPO's filter, arXiv 2503.14476; used by arXiv 2606.04560).

    In a group of equal rewards every advantage is 0: there is nothing to learn and nothing to prioritize.
    """

    @property
    def name(self) -> str:
        return "uninformative"

    def __call__(self, rollouts: Rollouts) -> NDArray[np.bool_]:
        return np.asarray(rollouts.group_reward_std > 0)


@dataclass(frozen=True, slots=True)
class FiniteLogprobs:
    """Rollouts whose behavior log-probs are all finite. Without this rule one that is not makes the insert fail."""

    @property
    def name(self) -> str:
        return "nonfinite_logprobs"

    def __call__(self, rollouts: Rollouts) -> NDArray[np.bool_]:
        return ~rows_holding(~np.isfinite(rollouts.behavior_logprobs), rollouts.offsets)


@dataclass(frozen=True, slots=True)
class Usable:
    """Rollouts that a trainer will not refuse later, by the rules of `ostinato.usable`: truncated sampling, for one."""

    @property
    def name(self) -> str:
        return "unusable"

    def __call__(self, rollouts: Rollouts) -> NDArray[np.bool_]:
        return usable_rollouts(rollouts)[0]


@dataclass(frozen=True, slots=True)
class Correct:
    """Rollouts with a reward above `threshold`: RLEP (arXiv 2507.07451) and ExGRPO (arXiv 2510.02245) replay no other.

    Raises `ConfigError` unless the threshold is finite.
    """

    threshold: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", check_finite("threshold", self.threshold))

    @property
    def name(self) -> str:
        return "incorrect"

    def __call__(self, rollouts: Rollouts) -> NDArray[np.bool_]:
        return np.asarray(rollouts.reward > self.threshold)


def admitted(rules: Sequence[Admission], rollouts: Rollouts) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which rollouts every rule lets in, (n,), and how many each refused; one refused twice counts for the first rule.

    Raises `DataError` when a rule answers with anything but a mask of n.
    """
    mask = np.ones(len(rollouts), np.bool_)
    refused: dict[str, int] = {}
    for rule in rules:
        verdict = np.asarray(rule(rollouts))
        if verdict.dtype != np.bool_ or verdict.shape != mask.shape:
            shape = f"{verdict.dtype} {verdict.shape}"
            raise DataError(f"admission rule {rule.name!r} returned {shape}, expected bool {mask.shape}")
        refused[rule.name] = refused.get(rule.name, 0) + int(np.count_nonzero(mask & ~verdict))
        mask &= verdict
    return mask, refused
