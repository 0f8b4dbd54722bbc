"""The ends of what the theory takes: a finite number or one line that names the constraint."""

import math

import numpy as np
import pytest

from ostinato.errors import ConfigError, DataError
from ostinato.theory import Limits, MeasuredVariance, PowerLaw, Workload, make_plan, optimum, safest_rho
from ostinato.theory.planner import split_designs, turn_designs

MUS, RHOS, ALPHAS = (1e-9, 1.0, 1e12), (0.0, 5e-324, 0.5, 1.0), (0.0, 5e-324, 1e-300, 1e-12, 0.1, 0.4999999, 0.5, 10.0)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_optimum_when_numbers_are_at_their_ends_is_finite_and_no_design_beats_it(mu, alpha) -> None:
    for rho in RHOS:
        workload = Workload(mu, rho, PowerLaw(alpha))
        best = optimum(workload)
        assert math.isfinite(best.objective) and best.objective > 0
        assert best.staleness_horizon >= 1 and not math.isnan(best.uses_per_rollout)
        for designs in (split_designs(workload, 8, Limits(60, 16)), turn_designs(workload, Limits(60, 16))):
            assert all(math.isfinite(design.objective) for design in designs)
            assert designs[0].objective >= best.objective * (1 - 1e-9)
    assert 0 <= safest_rho(mu, PowerLaw(alpha), 1.0) <= 1


def test_optimum_when_alpha_is_hardly_above_zero_is_that_of_zero() -> None:
    for rho in (0.0, 0.1):
        tiny, zero = (optimum(Workload(5.0, rho, PowerLaw(alpha))) for alpha in (5e-324, 0.0))
        assert tiny == zero and tiny.boundary == "keep_everything"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Workload(1e-10, 0.1, PowerLaw(0.1)), ConfigError, "mu must be within 1e-09 and"),
        (lambda: Workload(1e13, 0.1, PowerLaw(0.1)), ConfigError, "mu must be within 1e-09 and"),
        (lambda: PowerLaw(11.0), ConfigError, "alpha must be at most 10"),
        (lambda: MeasuredVariance([0, 1e10], [1, 2]), DataError, "ages must be at most"),
        (lambda: MeasuredVariance([0, 1], [1, 1e308]), DataError, "second moments must be within"),
        (lambda: MeasuredVariance([0, 1], [1e-300, 1]), DataError, "second moments must be within"),
        (lambda: Limits(10**13), ConfigError, "batch size must be at most"),
        (lambda: Limits(60, 16, 10**30), ConfigError, "max_capacity must be at most"),
        (
            lambda: make_plan(Workload(5.0, 0.1, PowerLaw(0.1)), Limits(60), gpus=10**6),
            ConfigError,
            "GPUs can be split",
        ),
    ],
)
def test_theory_when_a_number_is_beyond_its_end_names_the_constraint(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


def test_designs_when_age_costs_nothing_fill_the_memory_that_there_is() -> None:
    workload = Workload(5.0, 0.1, PowerLaw(0.0))
    for designs in (split_designs(workload, 8, Limits(60, 16, 10_000)), turn_designs(workload, Limits(60, 16, 10_000))):
        assert np.unique([design.capacity for design in designs]).tolist() == [10_000]
