"""The closed form against the numbers of the paper, a search, brute force on the integral, and its limits."""

import math

import numpy as np
import pytest
from scipy import integrate, optimize

from ostinato.errors import ConfigError
from ostinato.theory import MeasuredVariance, PowerLaw, Problem, Workload, gradient_bound, minimize, optimum

CHECKED = Workload(mu=5.28, rho=0.05, variance=PowerLaw(0.1))


def random_workloads(n: int, seed: int) -> list[Workload]:
    rng = np.random.default_rng(seed)
    return [
        Workload(rng.uniform(1, 12), rng.uniform(0, 1), PowerLaw(rng.uniform(0.01, 0.6), tau=rng.uniform(0.5, 20)))
        for _ in range(n)
    ]


def test_optimum_when_the_workload_is_the_papers_has_its_numbers() -> None:
    best = optimum(CHECKED)
    assert best.staleness_horizon == pytest.approx(21.619435, abs=5e-7)
    assert best.uses_per_rollout == pytest.approx(7.406381, abs=5e-7)
    # J without the constant 1 / (2 alpha + 1) that the mean over ages has.
    assert best.objective * 1.2 == pytest.approx(1.027539, abs=5e-7)
    assert best.boundary == ""


def test_optimum_when_mu_is_one_over_rho_passes_the_removable_singularity() -> None:
    at, beside = (optimum(Workload(mu, 0.2, PowerLaw(0.1))) for mu in (5.0, 5.0 + 1e-9))
    y = at.uses_per_rollout
    assert 0.2 * y**2 + 0.2 * y - 5.0 * 0.8 == pytest.approx(0, abs=1e-12)
    assert at.staleness_horizon == pytest.approx(y**2 / (5.0 - 0.2 * y**2), rel=1e-12)
    assert at.staleness_horizon == pytest.approx(beside.staleness_horizon, rel=1e-8)


def test_optimum_when_rollouts_are_almost_independent_approaches_the_limit() -> None:
    at, near = (optimum(Workload(5.28, rho, PowerLaw(0.3))) for rho in (0.0, 1e-12))
    assert near.objective == pytest.approx(at.objective, rel=1e-9)
    assert at.boundary == "whole_buffer"  # x* = y*^2 / mu = 2.35 holds no y* = 3.52
    assert at.staleness_horizon == at.uses_per_rollout == pytest.approx(5.28 * 0.4 / 0.6)


def test_optimum_when_independent_and_interior_has_the_stated_form() -> None:
    best = optimum(Workload(2.0, 0.0, PowerLaw(0.1)))
    assert best.uses_per_rollout == pytest.approx(2.0 * 0.8 / 0.2)
    assert best.staleness_horizon == pytest.approx(8.0**2 / 2.0)


@pytest.mark.parametrize(
    ("rho", "uses", "objective"), [(0.05, math.sqrt(5.28 / 0.05), None), (0.0, math.inf, 1 / 5.28)]
)
def test_optimum_when_age_costs_nothing_keeps_everything(rho, uses, objective) -> None:
    best = optimum(Workload(5.28, rho, PowerLaw(0.0)))
    assert best.boundary == "keep_everything"
    assert best.staleness_horizon == math.inf
    assert best.uses_per_rollout == pytest.approx(uses)
    expected = objective or (1 + uses / 5.28) * (1 / uses + rho)
    assert best.objective == pytest.approx(expected)
    # The limit of small alpha.
    assert optimum(Workload(5.28, rho, PowerLaw(1e-9))).objective == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("alpha", [0.5, 0.7, 2.0])
def test_optimum_when_variance_grows_as_fast_as_age_stays_on_policy(alpha) -> None:
    best = optimum(Workload(5.28, 0.05, PowerLaw(alpha)))
    assert (best.staleness_horizon, best.boundary) == (1.0, "on_policy")
    assert best.uses_per_rollout == 1.0  # sqrt(mu / (rho + 1)) = 2.24 would not fit


def test_optimum_when_generation_is_cheap_uses_less_than_each_rollout() -> None:
    best = optimum(Workload(0.25, 1.0, PowerLaw(0.6)))
    assert best.uses_per_rollout == pytest.approx(math.sqrt(0.25 / 2))


def test_closed_form_and_search_when_compared_over_a_thousand_workloads_agree() -> None:
    edges = set()
    for workload in random_workloads(1000, seed=0):
        closed, searched = optimum(workload), minimize(workload, longest=1e6)
        assert closed.objective == pytest.approx(searched.objective, rel=1e-9)
        assert closed.staleness_horizon == pytest.approx(searched.staleness_horizon, rel=1e-5)
        assert closed.uses_per_rollout == pytest.approx(searched.uses_per_rollout, rel=1e-5)
        edges.add(closed.boundary)
    assert edges == {"", "on_policy", "whole_buffer"}


def test_closed_form_when_compared_with_brute_force_on_the_integral_is_no_worse() -> None:
    for workload in random_workloads(40, seed=1):
        law = workload.variance

        def j(point, workload=workload, law=law):
            x, share = math.exp(point[0]), point[1]  # y = share * x keeps 0 < y <= x
            mean = integrate.quad(lambda s: float(law.second_moment(s)), 0, x, epsabs=0, epsrel=1e-10)[0] / x
            return mean * (1 + share * x / workload.mu) * (1 / (share * x) + 1 / x + workload.rho)

        bounds = [(0, math.log(1e5)), (1e-4, 1)]
        rough = optimize.brute(j, bounds, Ns=15, finish=None)
        fine = optimize.minimize(j, rough, bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12})
        fine = optimize.minimize(
            j, fine.x, bounds=bounds, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}
        )
        assert optimum(workload).objective == pytest.approx(fine.fun, rel=1e-9)


def test_search_when_the_law_is_a_fine_table_finds_the_power_laws_optimum() -> None:
    ages = np.concatenate([[0], np.geomspace(1e-4, 200, 20_000)])
    table = MeasuredVariance(ages[1:], PowerLaw(0.1).second_moment(ages[1:]))
    best = optimum(Workload(5.28, 0.05, table))
    assert best.staleness_horizon == pytest.approx(21.6194, rel=1e-3)
    assert best.objective == pytest.approx(optimum(CHECKED).objective, rel=1e-5)


def test_search_when_the_data_ends_before_the_optimum_stops_there() -> None:
    best = optimum(Workload(5.28, 0.05, MeasuredVariance([0, 4], [1.0, 1.0])))
    assert (best.staleness_horizon, best.boundary) == (pytest.approx(5.0), "end_of_data")


def test_objective_when_written_out_is_the_papers() -> None:
    # sbar2(4) = 4^0.5 / 1.5; (1 + 2/8) (1/2 + 1/4 + 1/4) = 1.25.
    workload = Workload(8.0, 0.25, PowerLaw(0.25))
    assert float(workload.objective(4.0, 2.0)) == pytest.approx(2 / 1.5 * 1.25)
    assert workload.objective_without_buffer() == pytest.approx(1 / 1.5 * 1.125 * 1.25)


def test_bound_when_written_out_is_theorem_4_4() -> None:
    workload, problem = Workload(5.0, 0.5, PowerLaw(0.0)), Problem(start_loss=2.0, smoothness=1.0, sensitivity=0.1)
    value = gradient_bound(
        workload, problem, capacity=20, rollouts_per_step=10, batch_size=5, learning_rate=0.1, train_steps=100
    )
    v = 1 / 5 + 1 / 20 + 0.5 / 10
    assert value == pytest.approx(12 * 2 / 10 + 0.8 * (4 * 4 * 0.01 * 0.1 + 1) * v)


def test_bound_when_the_step_is_too_large_says_up_to_where_it_holds() -> None:
    problem = Problem(start_loss=2.0, smoothness=1.0, sensitivity=1.0)
    with pytest.raises(ConfigError, match=r"up to 0\.176777, got 0\.2"):
        gradient_bound(
            CHECKED, problem, capacity=20, rollouts_per_step=10, batch_size=5, learning_rate=0.2, train_steps=9
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(0.0, 0.1, PowerLaw(0.1)), "mu must be above 0, got 0"),
        (lambda: Workload(math.nan, 0.1, PowerLaw(0.1)), "mu must be a finite number, got nan"),
        (lambda: Workload(5.0, 1.1, PowerLaw(0.1)), "rho must lie between 0 and 1, got 1.1"),
        (lambda: Workload(5.0, math.nan, PowerLaw(0.1)), "rho must be a finite number"),
        (lambda: Workload("5", 0.1, PowerLaw(0.1)), "mu must be a finite number, got '5'"),
        (lambda: Workload(5.0, True, PowerLaw(0.1)), "rho must be a finite number, got True"),
        (lambda: PowerLaw("a"), "alpha must be a finite number, got 'a'"),
        (lambda: PowerLaw(0.1, tau=10**400), "tau must be a finite number"),
        (lambda: PowerLaw(-0.1), "variance cannot fall"),
        (lambda: PowerLaw(0.1, tau=0.0), "tau must be above 0"),
        (lambda: minimize(CHECKED), "at least 1 train step, got inf"),
    ],
)
def test_workload_when_impossible_names_the_constraint(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
