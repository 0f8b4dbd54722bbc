"""Designs that can be built: whole GPUs, whole rollouts.

The optimum of `optimum` is a pair of real numbers. Here W generators, T trainers and N rollouts are enumerated and
each design is charged with what it really does: mu T / W uses, a buffer of N rollouts of which B W / (mu T) leave in a
train step.

Source: arXiv 2604.08706, sections 2 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ostinato.errors import ConfigError
from ostinato.setting_checks import check_whole
from ostinato.theory.accounting import compute_ratio, mean_uses
from ostinato.theory.variance import PowerLaw
from ostinato.theory.workload import Workload

COARSE = 4096
"""Capacities tried for one split before the neighborhood of the best is searched one by one."""

NO_COST_BATCHES = 64
"""Where age costs nothing the best capacity is without end: then this many batches are tried at most, or what
memory holds where that is said."""

MOST_ROLLOUTS = 10**12
"""Largest batch, group and buffer; what a recipe takes too."""

MOST_GPUS = 4096
"""Splits are tried one by one."""

LONGEST_HORIZON = 1_000_000
"""Train steps that a rollout stays at most in any design that is tried."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a design must keep: `batch_size` B and `group_size` G are given; `max_capacity`, rollouts that memory holds
    (None: no limit); `sharded`: every trainer owns N/T rollouts and draws B/T, so T divides N and B."""

    batch_size: int
    group_size: int = 1
    max_capacity: int | None = None
    sharded: bool = False

    def __post_init__(self) -> None:
        check_whole("batch size", self.batch_size, least=1, most=MOST_ROLLOUTS)
        check_whole("group size", self.group_size, least=1, most=MOST_ROLLOUTS)
        if self.max_capacity is not None:
            check_whole("max_capacity", self.max_capacity, least=0, most=MOST_ROLLOUTS)
        if self.max_capacity is not None and self.max_capacity < max(self.batch_size, self.group_size):
            raise ConfigError(
                f"max_capacity must hold a batch of {self.batch_size} and a group of {self.group_size} rollouts, "
                f"got {self.max_capacity}"
            )


@dataclass(frozen=True, slots=True)
class Design:
    """One way to run. `generators` and `trainers` are 0 where the same hardware does both in turns.

    `uses_per_rollout` y and `staleness_horizon` x = N / R are what this design has, `gamma` the compute of its train
    step over that without a buffer, `objective` J as charged here, `saving_to_accuracy` 1 - J / J0.
    """

    generators: int
    trainers: int
    capacity: int
    batch_size: int
    uses_per_rollout: float
    staleness_horizon: float
    gamma: float
    objective: float
    saving_to_accuracy: float

    @property
    def saving_per_update(self) -> float:
        """1 - gamma: against the best split without a buffer, whose train step costs C (1 + mu)."""
        return 1 - self.gamma


def split_designs(workload: Workload, gpus: int, limits: Limits) -> list[Design]:
    """The best capacity of each split W + T = `gpus`, cheapest design first.

    Raises `ConfigError` when no split can keep the limits, naming the constraint.
    """
    if check_whole("gpus", gpus, least=0) < 2:
        raise ConfigError(f"generators beside trainers need at least 2 GPUs, got {gpus}; plan in turns for one")
    if gpus > MOST_GPUS:
        raise ConfigError(f"at most {MOST_GPUS} GPUs can be split, got {gpus}; plan a share: only W : T : N counts")
    found: list[Design] = []
    for trainers in range(1, gpus):
        generators = gpus - trainers
        if limits.sharded and limits.batch_size % trainers:
            continue
        uses, gamma = mean_uses(workload.mu, generators, trainers), compute_ratio(workload.mu, generators, trainers)
        found += _designs(workload, limits, uses, gamma, generators, trainers)
    if not found:
        raise ConfigError(f"no design of {gpus} GPUs is possible, whatever the split: {_obstacle(workload, limits)}")
    return sorted(found, key=lambda design: design.objective)


def turn_designs(workload: Workload, limits: Limits, *, max_uses: int = 32) -> list[Design]:
    """The best capacity for each whole number of uses, cheapest first, on hardware that generates and trains in turns.

    The dial is y: a train step costs C (1 + mu / y). `Design.generators` and `trainers` are 0.
    """
    check_whole("max_uses", max_uses, least=1)
    found: list[Design] = []
    for uses in range(1, max_uses + 1):
        gamma = (1 + workload.mu / uses) / (1 + workload.mu)
        found += _designs(workload, limits, float(uses), gamma, 0, 0)
    return sorted(found, key=lambda design: design.objective)


def held_time_ratio(workload: Workload, design: Design, generators: int, trainers: int) -> float:
    """GPU time that `design` holds for a train step over what a split without a buffer holds, waiting included.

    Without a buffer the slower side sets the pace: a step takes max(C / T, mu C / W) on W + T GPUs. 1 - this is the
    saving against that split; against W / T = mu it equals `saving_per_update`.
    """
    if generators < 1 or trainers < 1:
        raise ConfigError(f"the split without a buffer needs W >= 1 and T >= 1, got {generators} and {trainers}")
    held = (generators + trainers) * max(1 / trainers, workload.mu / generators)
    return design.gamma * (1 + workload.mu) / held


def _designs(
    workload: Workload, limits: Limits, uses: float, gamma: float, generators: int, trainers: int
) -> Iterator[Design]:
    per_step = limits.batch_size / uses
    step = trainers if limits.sharded else 1
    least = max(limits.batch_size, limits.group_size, math.ceil(per_step - 1e-9))
    lowest, highest = -(-least // step), _most(workload, limits, per_step, least) // step
    if highest < lowest:
        return
    coarse = np.unique(np.geomspace(lowest, highest, COARSE).round().astype(np.int64).clip(lowest, highest))
    near = int(np.argmin(workload.objective(coarse * step / per_step, uses)))
    low, high = coarse[max(near - 1, 0)], coarse[min(near + 1, len(coarse) - 1)]
    fine = np.arange(low, high + 1, max((high - low) // (64 * COARSE), 1)) * step
    charges = workload.objective(fine / per_step, uses)
    best = int(np.argmin(charges))
    yield Design(
        generators,
        trainers,
        int(fine[best]),
        limits.batch_size,
        uses,
        float(fine[best] / per_step),
        gamma,
        float(charges[best]),
        1 - float(charges[best]) / workload.objective_without_buffer(),
    )


def _obstacle(workload: Workload, limits: Limits) -> str:
    if limits.max_capacity is None:
        longest = workload.variance.longest
        return f"a batch of {limits.batch_size} reaches beyond the measured ages, {longest:g} train steps"
    return f"a buffer of {limits.max_capacity} rollouts is smaller than what generators make in a train step"


def _most(workload: Workload, limits: Limits, per_step: float, least: int) -> int:
    """The largest capacity worth trying: what memory holds, what was measured, where a power law has turned."""
    law, bounds = workload.variance, [float(MOST_ROLLOUTS if limits.max_capacity is None else limits.max_capacity)]
    if math.isfinite(law.longest):
        bounds.append(law.longest * per_step)
    elif isinstance(law, PowerLaw) and law.alpha > 0:
        # x^(2 alpha) (1/y + rho + 1/x) rises from x = (1/(2 alpha) - 1) / (1/y + rho) on.
        turn = (1 / (2 * law.alpha) - 1) / (per_step / limits.batch_size + workload.rho)
        bounds.append(max(min(turn + 2, LONGEST_HORIZON) * per_step, least))
    elif limits.max_capacity is None:
        bounds.append(max(NO_COST_BATCHES * limits.batch_size, least))
    return int(min(bounds))
