"""What governors do to one optimizer step: how long it is, and whether it is taken at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.governors.gradient_gate import GradientGate, GradientGateSettings
from ostinato.governors.learning_rate import LearningRateSettings, learning_rate_scale
from ostinato.setting_checks import check_whole


@dataclass(frozen=True, slots=True)
class StepSettings:
    """All off by default. `gradient_split_every`: steps between two measurements of the gradients of fresh and of
    replayed rollouts, 0: never. `epochs`: consecutive steps on one batch. Raises `ConfigError` for impossible ones.
    """

    learning_rate: LearningRateSettings | None = None
    gate: GradientGateSettings | None = None
    gradient_split_every: int = 0
    epochs: int = 1

    def __post_init__(self) -> None:
        check_whole("gradient_split_every", self.gradient_split_every, least=0)
        check_whole("epochs", self.epochs, least=1)


@dataclass(frozen=True, slots=True)
class Decision:
    """Multiply the learning rate by `learning_rate_scale` for this step; `dropped`: take no step at all."""

    learning_rate_scale: float
    dropped: bool
    metrics: Mapping[str, float]


class StepGovernor:
    """Asked by a trainer between the backward pass and the optimizer, once a step.

    if governor.splits: measure the gradients of fresh and of replayed rollouts apart
    if governor.wants_energy: energy = squared norm of the gradient of the output layer, before clipping
    decision = governor.decide(figures, uses=draw.uses, energy=energy)
    """

    def __init__(self, settings: StepSettings | None = None) -> None:
        self.settings = settings or StepSettings()
        self._steps = 0
        self._gate = GradientGate(self.settings.gate) if self.settings.gate else None

    @property
    def splits(self) -> bool:
        """Whether this step measures the gradients of fresh and of replayed rollouts: every k-th one."""
        every = self.settings.gradient_split_every
        return every > 0 and (self._steps + 1) % every == 0

    @property
    def wants_energy(self) -> bool:
        """Whether `decide` looks at the energy."""
        return self._gate is not None

    def decide(
        self, figures: Mapping[str, NDArray[np.float64]], *, uses: NDArray[np.int64], energy: float = 0.0
    ) -> Decision:
        """What to do with the gradient of this step; ends the step.

        `figures` as for `stats.diagnose`; `uses` int64 (n,): how often each rollout was drawn before. A batch has a
        first pass only where there are several (`epochs` > 1): the one in which everything is new. Metrics, of what is
        on: `learning_rate_scale`; `gradient_energy` and those of `GradientGate`. Raises `DataError` as they do.
        """
        self._steps += 1
        scale, dropped, metrics = 1.0, False, dict[str, float]()
        if self._gate:
            first_pass = self.settings.epochs > 1 and not uses.any()
            dropped = not self._gate.admit(energy, new_batch=first_pass)
            metrics |= {"gradient_energy": energy, **self._gate.metrics()}
        if self.settings.learning_rate:
            scale = learning_rate_scale(figures, self.settings.learning_rate)
            metrics["learning_rate_scale"] = scale
        return Decision(scale, dropped, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, JSON-able."""
        return {"steps": self._steps, "gate": self._gate.state_dict() if self._gate else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises `DataError` when something is missing."""
        if "steps" not in state or (self._gate and not state.get("gate")):
            raise DataError(f"step governor state lacks steps or gate, got {dict(state)}")
        if self._gate:
            self._gate.load_state_dict(state["gate"])
        self._steps = int(state["steps"])
