"""The sections `diagnostics` and `governors` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.config.setting import setting

ABOVE_0, ABOVE_1 = 1e-9, 1 + 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosticsConfig:
    """What is measured besides what costs nothing."""

    gradient_split_every: int = setting(
        0, "train steps between two measurements of the gradients of fresh and of replayed rollouts; 0: never", low=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GovernorsConfig:
    """Rules that act on the diagnostics, all off; see `ostinato.governors`."""

    ratio_bound: float | None = setting(
        None,
        "replay only: a drawn rollout leaves when its ratio is outside [1 / bound, bound]; none: off",
        low=ABOVE_1,
    )
    ratio_level: str = setting(
        "geometric", "ratio_bound: mean over tokens, or of the sequence", choices=("geometric", "sequence")
    )
    ess_bound: float | None = setting(
        None,
        "replay only: a drawn rollout leaves when the effective sample fraction of its age is below it; none: off",
        low=ABOVE_0,
        high=1,
    )
    ess_hysteresis: float = setting(0.05, "ess_bound: an age opens again at the bound plus this", low=0, high=1)
    min_samples: int = setting(64, "ess_bound: rollouts of an age before it is judged", low=2)
    window: int = setting(512, "ess_bound: latest rollouts of an age that it is judged by", low=2)
    learning_rate: str = setting(
        "off",
        "scaled for a step by the batch's effective sample fraction: sqrt or linear; or off",
        choices=("off", "sqrt", "linear"),
    )
    learning_rate_base: float = setting(
        1.0, "learning_rate: the fraction from which on it is whole", low=ABOVE_0, high=1
    )
    gate_z: float | None = setting(
        None,
        "where batches are reused: a gradient whose energy rises by more deviations is dropped; none: off",
        low=0,
    )
    gate_min_increments: int = setting(3, "gate_z: increments to see before anything is dropped", low=2)
    gate_decay: float = setting(1.0, "gate_z: weight of an earlier increment, a step", low=ABOVE_0, high=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlConfig:
    """What keeps buffer.capacity and buffer.samples_per_insert at their optimum where they are `auto`."""

    every: int = setting(20, "train steps from one change to the next, at least", low=1)
    window: int = setting(100, "latest train steps that the estimates are made of", low=2)
    rho: float = setting(0.2, "correlation of the rollouts in the buffer, which no run can tell", low=0, high=1)
    step: float = setting(0.25, "the largest relative change at once", low=1e-3, high=1)
    hysteresis: float = setting(0.15, "a relative distance to the optimum up to which nothing changes", low=0, high=1)
    max_batches: int = setting(64, "the largest capacity, in batches", low=1, high=10**6)
