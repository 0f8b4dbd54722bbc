"""Plans: the best design, whether replay pays, and what is taken where rho is not known."""

import pytest

from ostinato.errors import ConfigError
from ostinato.theory import (
    Limits,
    PowerLaw,
    Workload,
    best_split_without_buffer,
    make_plan,
    optimum,
    rho_grid,
    safest_rho,
)

CHECKED = Workload(mu=5.28, rho=0.05, variance=PowerLaw(0.1))


def test_plan_when_the_paper_s_workload_is_given_saves_what_its_formula_says() -> None:
    plan = make_plan(CHECKED, Limits(60, 16), gpus=8)
    assert plan.replays
    # J = 1.027539 / 1.2 and J0 = (1 / 1.2) (1 + 1 / 5.28) 1.05.
    assert plan.ideal_saving_to_accuracy == pytest.approx(1 - 1.027539 / ((1 + 1 / 5.28) * 1.05), abs=1e-6)
    assert (plan.design.generators, plan.design.trainers) == (3, 5)
    assert plan.without_buffer == (6, 2)
    # Six and two without a buffer wait for generators: 8 GPUs for 5.28 / 6 C; with one, 1 + 3/5 C.
    assert plan.saving_against_split == pytest.approx(1 - 1.6 / (8 * 5.28 / 6))


def test_plan_when_age_costs_much_says_that_no_buffer_is_better() -> None:
    assert not make_plan(Workload(5.28, 0.05, PowerLaw(0.6)), Limits(60, 16), gpus=8).replays


def test_plan_when_one_gpu_takes_turns_needs_no_split() -> None:
    plan = make_plan(CHECKED, Limits(60, 16), gpus=1, in_turns=True)
    assert plan.in_turns and plan.design.uses_per_rollout == 7


@pytest.mark.parametrize(
    ("mu", "gpus", "split"), [(5.28, 8, (6, 2)), (1.0, 8, (4, 4)), (0.1, 8, (1, 7)), (9, 1, (1, 1))]
)
def test_split_without_a_buffer_when_chosen_waits_least(mu, gpus, split) -> None:
    assert best_split_without_buffer(mu, gpus) == split


def test_safest_rho_when_a_range_is_given_loses_least_in_its_worst_case() -> None:
    grid = rho_grid(1.0)
    law = PowerLaw(0.1)

    def worst(rho: float) -> float:
        at = optimum(Workload(5.28, rho, law))
        return max(
            float(w.objective(at.staleness_horizon, at.uses_per_rollout)) / optimum(w).objective
            for w in (Workload(5.28, other, law) for other in grid)
        )

    chosen = safest_rho(5.28, law, 1.0)
    assert chosen in grid
    assert worst(chosen) == min(map(worst, grid))
    assert 0 < chosen < 1


def test_safest_rho_when_age_costs_nothing_is_not_the_one_with_endless_uses() -> None:
    assert safest_rho(5.28, PowerLaw(0.0), 1.0) > 0


def test_safest_rho_when_the_range_is_a_point_is_that_point() -> None:
    assert safest_rho(5.28, PowerLaw(0.1), 0.0) == 0.0


def test_plan_when_there_are_no_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match="gpus must be at least 1, got 0"):
        make_plan(CHECKED, Limits(60), gpus=0)
