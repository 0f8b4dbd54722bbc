"""Stop reusing a batch when the gradient of the output layer surges, before the optimizer sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_finite, check_not_negative, check_whole

ENERGY_BOUND = 1e100
"""Beyond this the squares of increments would overflow."""

STATE = ("previous", "seen", "weight", "mean", "squares", "dropped")


@dataclass(frozen=True, slots=True)
class GradientGateSettings:
    """`tau_z`: deviations above the mean from which an increment counts as a surge; published 0.1, 0.5 and 1.0.

    `min_increments`: increments to see before anything is dropped; `decay` in (0, 1]: each increment multiplies the
    weight of all earlier ones by it, 1 weighs the whole run alike (the paper does not say which).
    Raises `ConfigError` for tau_z < 0, min_increments < 2, or another decay.
    """

    tau_z: float = 1.0
    min_increments: int = 3
    decay: float = 1.0

    def __post_init__(self) -> None:
        if self.tau_z != math.inf:  # nothing is dropped
            check_not_negative("tau_z", self.tau_z)
        check_whole("min_increments", self.min_increments, least=2)
        if not 0 < check_finite("decay", self.decay) <= 1:
            raise ConfigError(f"decay must be within (0, 1], got {self.decay}")


class GradientGate:
    """Decides whether a gradient may reach the optimizer, from its energy and the energies before.

        d_t = g_t - g_(t-1),        z = (d_t - m) / s,        dropped where z > tau_z

    g: energy, the squared 2-norm of the loss's gradient with respect to the weight of the output layer (lm_head), over
    the whole optimizer step, before clipping. Where that weight is also the input embedding, its gradient has both
    parts. (The paper's descriptions do not say whether energy is the norm or its square.) m, s: mean and population
    deviation of the admitted increments before this one. While there are fewer than `min_increments`, or s = 0, nothing
    is dropped.

    The first gradient of a new batch has no increment and passes. So does the one after a drop: whoever follows the
    gate never waits forever. A dropped energy enters neither m nor s. Where every step draws another batch from a
    buffer there is no first pass: leave `new_batch` False, and steps are compared with the ones before.
    Source: DGG, "When to Stop Reusing", arXiv 2605.19425.
    """

    def __init__(self, settings: GradientGateSettings) -> None:
        self.settings = settings
        self._previous: float | None = None
        self._seen = 0
        self._weight = self._mean = self._squares = 0.0
        self._dropped = 0

    def z(self, energy: float) -> float:
        """Deviations by which this energy's increment exceeds the mean; 0 while there is nothing to compare with."""
        deviation = math.sqrt(self._squares / self._weight) if self._weight else 0.0
        if self._previous is None or self._seen < self.settings.min_increments or deviation == 0:
            return 0.0
        return (energy - self._previous - self._mean) / deviation

    def admit(self, energy: float, *, new_batch: bool = False) -> bool:
        """Whether the gradient may reach the optimizer. False: drop it, leave the optimizer's state alone, draw anew.

        `new_batch`: the first pass over a batch. Raises `DataError` for an energy that is not within [0, 1e100].
        """
        if not 0 <= energy <= ENERGY_BOUND:
            raise DataError(f"gradient energy must be within [0, {ENERGY_BOUND:g}], got {energy}")
        if new_batch:
            self._previous = None
        if self.z(energy) > self.settings.tau_z:
            self._dropped += 1
            self._previous = None
            return False
        if self._previous is not None:
            self._learn(energy - self._previous)
        self._previous = energy
        return True

    def metrics(self) -> dict[str, float]:
        """`gradients_dropped` so far; `energy_increment_mean` and `energy_increment_std`: m and s."""
        deviation = math.sqrt(self._squares / self._weight) if self._weight else 0.0
        return {
            "gradients_dropped": float(self._dropped),
            "energy_increment_mean": self._mean,
            "energy_increment_std": deviation,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, JSON-able."""
        return {name: getattr(self, f"_{name}") for name in STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises `DataError` when something is missing or no finite number."""
        missing = [name for name in STATE if name not in state]
        if missing:
            raise DataError(f"gradient gate state lacks {missing[0]!r}, got {sorted(state)}")
        for name in STATE:
            if name == "previous" and state[name] is None:
                continue
            try:
                check_finite(name, state[name])
            except ConfigError as error:
                raise DataError(f"gradient gate state cannot be used: {error}") from None
        for name in STATE:
            setattr(self, f"_{name}", state[name])

    def _learn(self, increment: float) -> None:
        """West's update of a weighted mean and sum of squared deviations."""
        self._seen += 1
        self._weight = self.settings.decay * self._weight + 1
        distance = increment - self._mean
        self._mean += distance / self._weight
        self._squares = self.settings.decay * self._squares + distance * (increment - self._mean)
