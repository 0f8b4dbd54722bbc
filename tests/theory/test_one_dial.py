"""One dial at its best while another is held: closed forms against search and against the joint optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.theory import MeasuredVariance, PowerLaw, Workload, best_horizon, best_uses_at, optimum
from ostinato.theory.optimum import least_at

PAPER = Workload(5.28, 0.05, PowerLaw(0.1))


def test_best_horizon_when_worked_by_hand() -> None:
    """alpha = .1: (1/.2 - 1) / (1/4 + .05) = 13.333; whatever mu is."""
    assert best_horizon(PAPER, 4.0) == pytest.approx(4 / 0.3)
    assert best_horizon(Workload(1.0, 0.05, PowerLaw(0.1)), 4.0) == pytest.approx(4 / 0.3)


def test_one_dial_when_the_other_is_at_the_optimum_is_there_too() -> None:
    best = optimum(PAPER)  # x* = 21.619435, y* = 7.406381
    assert best_horizon(PAPER, best.uses_per_rollout) == pytest.approx(21.619435, abs=1e-6)
    batches = best.staleness_horizon / best.uses_per_rollout
    assert best_uses_at(PAPER, batches) == pytest.approx(7.406381, abs=1e-6)


@given(st.floats(0.05, 50), st.floats(0, 1), st.floats(0.005, 0.6), st.floats(0.2, 40))
def test_best_horizon_when_searched_for_is_no_better(mu, rho, alpha, uses) -> None:
    workload = Workload(mu, rho, PowerLaw(alpha))
    found, least = best_horizon(workload, uses), max(1.0, uses)
    searched = least_at(lambda xs: workload.objective(xs, uses), least, least * 1e5)
    assert found >= least
    assert float(workload.objective(found, uses)) <= float(workload.objective(searched, uses)) * (1 + 1e-9)


@given(st.floats(0.05, 50), st.floats(0, 1), st.floats(0.005, 0.6), st.floats(1, 100))
def test_best_uses_when_searched_for_are_no_better(mu, rho, alpha, batches) -> None:
    workload = Workload(mu, rho, PowerLaw(alpha))
    found = best_uses_at(workload, batches)
    searched = least_at(lambda ys: workload.objective(batches * ys, ys), 1 / batches, 1e5)

    def charge(y: float) -> float:
        return float(workload.objective(batches * y, y))

    assert found >= 1 / batches * (1 - 1e-12) and charge(found) <= charge(searched) * (1 + 1e-9)


def test_one_dial_when_age_or_likeness_cost_nothing_has_no_end() -> None:
    assert best_horizon(Workload(5.0, 0.1, PowerLaw(0.0)), 3.0) == math.inf
    assert best_uses_at(Workload(5.0, 0.0, PowerLaw(0.0)), 4.0) == math.inf
    assert best_uses_at(Workload(5.0, 0.2, PowerLaw(0.0)), 4.0) == pytest.approx(math.sqrt(1.25 * 5 / 0.2))


def test_one_dial_when_the_law_was_measured_stays_within_its_ages() -> None:
    ages = np.arange(0, 41)
    law = MeasuredVariance(ages, 1 + 0.02 * ages)
    workload = Workload(5.28, 0.05, law)
    best = optimum(workload)
    assert best.boundary == ""
    assert best_horizon(workload, best.uses_per_rollout) == pytest.approx(best.staleness_horizon, rel=1e-5)
    n = best.staleness_horizon / best.uses_per_rollout
    assert best_uses_at(workload, n) == pytest.approx(best.uses_per_rollout, rel=1e-5)
    with pytest.raises(ConfigError, match="50 uses a rollout reach beyond the measured ages, 41 train steps"):
        best_horizon(workload, 50.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_one_dial_when_the_other_is_no_number_is_refused(bad) -> None:
    for ask in (best_horizon, best_uses_at):
        with pytest.raises(ConfigError, match="must be"):
            ask(PAPER, bad)
    with pytest.raises(ConfigError, match=r"holds at least one batch, got 0\.5"):
        best_uses_at(PAPER, 0.5)
