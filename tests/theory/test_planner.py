"""Designs of whole GPUs and rollouts: against brute force over every capacity, and against the continuous optimum."""

import math

import numpy as np
import pytest

from ostinato.errors import ConfigError
from ostinato.theory import (
    Limits,
    MeasuredVariance,
    PowerLaw,
    Workload,
    held_time_ratio,
    optimum,
    split_designs,
    turn_designs,
)

CHECKED = Workload(mu=5.28, rho=0.05, variance=PowerLaw(0.1))


def charge(workload: Workload, capacity: int, batch_size: int, uses: float) -> float:
    """J of a power law, written out."""
    x, alpha = capacity / (batch_size / uses), workload.variance.alpha
    return x ** (2 * alpha) / (2 * alpha + 1) * (1 + uses / workload.mu) * (1 / uses + 1 / x + workload.rho)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    ("mu", "rho", "alpha"), [(5.28, 0.05, 0.1), (2.0, 0.5, 0.3), (9.0, 0.0, 0.05), (4.0, 1.0, 0.6)]
)
def test_split_designs_when_every_capacity_is_tried_are_the_best(mu, rho, alpha, sharded) -> None:
    workload, gpus, batch = Workload(mu, rho, PowerLaw(alpha)), 8, 60
    designs = split_designs(workload, gpus, Limits(batch, 16, max_capacity=500, sharded=sharded))
    assert [d.objective for d in designs] == sorted(d.objective for d in designs)
    for design in designs:
        t, uses = design.trainers, mu * design.trainers / design.generators
        least = max(batch, 16, math.ceil(batch / uses))
        allowed = [n for n in range(least, 501) if not sharded or n % t == 0]
        best = min(charge(workload, n, batch, uses) for n in allowed)
        assert design.objective == pytest.approx(best, rel=1e-12)
        assert charge(workload, design.capacity, batch, uses) == pytest.approx(best, rel=1e-12)
        assert design.capacity in allowed
    assert {d.trainers for d in designs} == {t for t in range(1, 8) if not sharded or batch % t == 0}


def test_horizon_when_counted_in_whole_steps_is_best_at_22_however_age_is_averaged() -> None:
    y = optimum(CHECKED).uses_per_rollout
    integral = {x: float(CHECKED.objective(x, y)) for x in range(8, 60)}
    # The paper's check point sums sigma^2 at the middle of each step.
    middles = {x: np.mean((np.arange(x) + 0.5) ** 0.2) * (1 / y + 1 / x + 0.05) for x in range(8, 60)}
    assert min(integral, key=integral.__getitem__) == min(middles, key=middles.__getitem__) == 22


def test_split_designs_when_gpus_are_many_approach_the_continuous_optimum() -> None:
    best = split_designs(CHECKED, 1024, Limits(4096, 16))[0]
    ideal = optimum(CHECKED)
    assert best.uses_per_rollout == pytest.approx(ideal.uses_per_rollout, rel=0.02)
    assert best.staleness_horizon == pytest.approx(ideal.staleness_horizon, rel=0.02)
    assert best.objective == pytest.approx(ideal.objective, rel=5e-3)


def test_design_when_read_agrees_with_the_accounting() -> None:
    design = next(d for d in split_designs(CHECKED, 8, Limits(60, 16)) if d.trainers == 3)
    assert design.gamma == pytest.approx((1 + 5 / 3) / 6.28)
    assert design.saving_per_update == 1 - design.gamma
    assert design.uses_per_rollout == pytest.approx(5.28 * 3 / 5)
    assert design.staleness_horizon == pytest.approx(design.capacity / (60 / design.uses_per_rollout))
    j0 = (1 + 1 / 5.28) * 1.05 / 1.2
    assert design.saving_to_accuracy == pytest.approx(1 - design.objective / j0)


def test_held_time_when_the_split_without_a_buffer_is_the_best_equals_gamma() -> None:
    workload = Workload(3.0, 0.05, PowerLaw(0.1))
    design = split_designs(workload, 8, Limits(60, 16))[0]
    assert held_time_ratio(workload, design, 6, 2) == pytest.approx(design.gamma)
    # Four and four: generators need 3/4 C for a step, so eight GPUs hold 6 C against the 4 C of the best split.
    assert held_time_ratio(workload, design, 4, 4) == pytest.approx(design.gamma * 4 / 6)
    with pytest.raises(ConfigError, match="W >= 1 and T >= 1"):
        held_time_ratio(workload, design, 8, 0)


def test_turn_designs_when_one_gpu_does_both_turn_the_dial_of_uses() -> None:
    best, *others = turn_designs(CHECKED, Limits(60, 16))
    assert best.uses_per_rollout == 7 and best.capacity == 178
    assert best.gamma == pytest.approx((1 + 5.28 / 7) / 6.28)
    assert (best.generators, best.trainers) == (0, 0)
    assert len(others) == 31 and all(d.objective >= best.objective for d in others)


def test_designs_when_age_costs_nothing_fill_the_memory_there_is() -> None:
    workload = Workload(5.28, 0.05, PowerLaw(0.0))
    assert {d.capacity for d in split_designs(workload, 4, Limits(60, 16, max_capacity=777))} == {777}


def test_designs_when_variance_was_measured_stay_within_the_measured_ages() -> None:
    workload = Workload(5.28, 0.05, MeasuredVariance([0, 5], [1.0, 1.0]))
    for design in split_designs(workload, 8, Limits(60, 16)):
        assert design.staleness_horizon <= 6 + 1e-9


def test_designs_when_nearly_free_ages_make_horizons_long_are_still_found_quickly() -> None:
    best = split_designs(Workload(5.28, 0.05, PowerLaw(1e-9)), 8, Limits(60, 16))[0]
    assert best.staleness_horizon <= 1_000_000
    assert np.isfinite(best.objective)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: split_designs(CHECKED, 1, Limits(60)), "at least 2 GPUs, got 1"),
        (lambda: Limits(0), "batch size must be at least 1"),
        (lambda: Limits(60.5), "batch size must be an integer"),
        (lambda: Limits(60, max_capacity="a"), "max_capacity must be an integer"),
        (lambda: split_designs(CHECKED, 8.0, Limits(60)), "gpus must be an integer"),
        (lambda: Limits(60, 16, max_capacity=59), "must hold a batch of 60"),
        (lambda: Limits(60, 64, max_capacity=63), "and a group of 64"),
        (lambda: turn_designs(CHECKED, Limits(60), max_uses=0), "max_uses must be at least 1"),
        (
            lambda: split_designs(Workload(0.01, 0.0, PowerLaw(0.1)), 2, Limits(60, max_capacity=100)),
            "a buffer of 100 rollouts is smaller than what generators make in a train step",
        ),
    ],
)
def test_designs_when_impossible_name_the_constraint(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
