"""From a workload to a plan: the continuous optimum, the designs that can be built, and whether replay pays at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.errors import ConfigError
from ostinato.theory.optimum import Optimum, optimum
from ostinato.theory.planner import Design, Limits, held_time_ratio, split_designs, turn_designs
from ostinato.theory.variance import VarianceLaw
from ostinato.theory.workload import Workload

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Where a range of rho is looked at, as shares of its upper end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`designs`: cheapest first, at least one. `without_buffer`: the split (W, T) that savings are stated against too.

    `optimum.objective` and `Design.objective` differ a little: the integral against ages counted in whole train steps.
    """

    workload: Workload
    optimum: Optimum
    designs: Sequence[Design]
    without_buffer: tuple[int, int]
    gpus: int

    @property
    def design(self) -> Design:
        """The best design with a buffer."""
        return self.designs[0]

    @property
    def in_turns(self) -> bool:
        """Whether the same hardware generates and trains."""
        return self.design.generators == 0

    @property
    def replays(self) -> bool:
        """Whether the best design with a buffer costs less than none: J < J0."""
        return self.design.saving_to_accuracy > 0

    @property
    def ideal_saving_to_accuracy(self) -> float:
        """1 - J / J0 at the continuous optimum, with J0 = sbar2(1) (1 + 1/mu) (1 + rho)."""
        return 1 - self.optimum.objective / self.workload.objective_without_buffer()

    @property
    def saving_against_split(self) -> float:
        """GPU time of a train step saved against `without_buffer`, its waiting included."""
        return 1 - held_time_ratio(self.workload, self.design, *self.without_buffer)


def make_plan(
    workload: Workload,
    limits: Limits,
    *,
    gpus: int,
    in_turns: bool = False,
    without_buffer: tuple[int, int] | None = None,
) -> Plan:
    """The plan for `gpus` that are split, or that generate and train `in_turns`.

    `without_buffer`: the split to compare with, the best of these GPUs where None. Raises `ConfigError` when no design
    can keep the limits, and for shards in turns.
    """
    if gpus < 1:
        raise ConfigError(f"gpus must be at least 1, got {gpus}")
    if in_turns and limits.sharded:
        raise ConfigError("GPUs in turns are one trainer with one buffer: sharded must be False")
    designs = turn_designs(workload, limits) if in_turns else split_designs(workload, gpus, limits)
    if not designs:
        raise ConfigError(f"no design holds a batch of {limits.batch_size} within the ages and memory that there are")
    split = without_buffer or best_split_without_buffer(workload.mu, gpus)
    return Plan(workload, optimum(workload), designs, split, gpus)


def best_split_without_buffer(mu: float, gpus: int) -> tuple[int, int]:
    """(W, T) with W + T = max(`gpus`, 2) whose slower side is quickest: least max(1 / T, mu / W)."""
    total = max(gpus, 2)
    trainers = min(range(1, total), key=lambda t: max(1 / t, mu / (total - t)))
    return total - trainers, trainers


def rho_grid(highest: float) -> list[float]:
    """The rho of a range [0, `highest`] at which plans are shown."""
    return [highest * share for share in SHARES] if highest > 0 else [0.0]


def safest_rho(mu: float, variance: VarianceLaw, highest: float) -> float:
    """The rho in [0, `highest`] whose optimum loses least when another one in that range is true.

    Minimizes over i the largest J_j(x_i, y_i) / J_j(x_j, y_j) over j, on `rho_grid`.
    """
    grid = rho_grid(highest)
    workloads = [Workload(mu, rho, variance) for rho in grid]
    best = [optimum(workload) for workload in workloads]
    with np.errstate(invalid="ignore"):  # both infinite at rho = 0 and alpha = 0
        cost = np.array(
            [
                [
                    float(w.objective(o.staleness_horizon, o.uses_per_rollout)) / own.objective
                    for w, own in zip(workloads, best, strict=True)
                ]
                for o in best
            ]
        )
    return grid[int(np.argmin(np.nan_to_num(cost, nan=np.inf).max(1)))]
