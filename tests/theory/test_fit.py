"""What a run says about its workload: exponents, cost ratios and limits that are known in synthetic data."""

import numpy as np
import pytest

from ostinato.errors import DataError
from ostinato.theory import AgeMoments, estimate_correlation_limit, estimate_exponent, estimate_mu, fit_exponent
from ostinato.theory.fit import LEVEL

AGES = np.array([0.0, 1.8, 7.5, 28.0])


def synthetic(rng: np.random.Generator, alpha: float, steps: int = 80) -> AgeMoments:
    """Gamma noise around 3 s^(2 alpha) of each step and age; some ages are missing in some steps."""
    truth = np.array([1.0, *(3 * AGES[1:] ** (2 * alpha))])
    weights = rng.integers(0, 400, size=(steps, 4)).astype(float) * (rng.random((steps, 4)) < 0.8)
    noise = rng.gamma(4.0, 0.25, size=(steps, 4))
    return AgeMoments(AGES, weights, weights * truth * noise)


def test_exponent_when_moments_follow_the_law_is_exact() -> None:
    ages = np.array([1.0, 2.0, 8.0, 30.0])
    assert fit_exponent(ages, 0.7 * ages**0.36, np.array([5.0, 1.0, 9.0, 2.0])) == pytest.approx(0.18, abs=1e-12)


def test_exponent_when_worked_by_hand_is_the_weighted_slope() -> None:
    # log s = 0, 1, 2 and log sigma^2 = 0, 1, 0 with weights 1, 2, 1: center 1, slope (-1 * 0 + 0 + 1 * 0) / 2 = 0.
    assert fit_exponent(np.exp([0.0, 1.0, 2.0]), np.exp([0.0, 1.0, 0.0]), np.array([1.0, 2.0, 1.0])) == 0
    # Weights 1, 1, 0: the line through two points, slope 1, alpha 1/2.
    assert fit_exponent(np.exp([0.0, 1.0, 2.0]), np.exp([0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0])) == pytest.approx(
        0.5
    )


def test_exponent_when_variance_falls_is_zero() -> None:
    assert fit_exponent(np.array([1.0, 9.0]), np.array([2.0, 1.0]), np.ones(2)) == 0


def test_exponent_when_it_is_estimated_lies_in_its_interval_as_often_as_promised() -> None:
    hits, errors = 0, []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found = estimate_exponent(synthetic(rng, 0.2), rng)
        hits += found.low <= 0.2 <= found.high
        errors.append(found.value - 0.2)
        assert found.low <= found.value <= found.high
    # 90 % promised; a binomial of 200 has a standard error of 2.1 %, a percentile bootstrap of 19 blocks falls short.
    assert LEVEL == 0.9
    assert 0.82 <= hits / 200 <= 0.97
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(200)


def test_exponent_when_estimated_twice_from_one_seed_is_the_same() -> None:
    moments = synthetic(np.random.default_rng(1), 0.1)
    assert estimate_exponent(moments, np.random.default_rng(5)) == estimate_exponent(moments, np.random.default_rng(5))


def test_exponent_when_steps_come_in_runs_has_a_wider_interval() -> None:
    # Every step eight times in a row: no more is known than from one of each.
    once = synthetic(np.random.default_rng(2), 0.2, steps=40)
    again = AgeMoments(AGES, np.repeat(once.weights, 8, 0), np.repeat(once.totals, 8, 0))
    few = estimate_exponent(once, np.random.default_rng(0))
    many = estimate_exponent(again, np.random.default_rng(0))
    assert many.value == pytest.approx(few.value)
    assert many.high - many.low > 0.6 * (few.high - few.low)


def test_exponent_when_one_age_was_seen_is_refused() -> None:
    weights = np.array([[3.0, 2.0, 0.0, 0.0]] * 5)
    with pytest.raises(DataError, match="at least two age buckets above 0, the run has 1"):
        estimate_exponent(AgeMoments(AGES, weights, weights), np.random.default_rng(0))


def test_means_by_age_when_an_age_was_not_seen_are_nan_there() -> None:
    moments = AgeMoments(np.array([0.0, 2.0]), np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[2.0, 0.0], [6.0, 0.0]]))
    assert moments.mean()[0] == 2.0
    assert np.isnan(moments.mean()[1])


def test_mu_when_steps_vary_is_the_ratio_of_sums_in_its_interval() -> None:
    rng = np.random.default_rng(0)
    generated = rng.integers(10, 100, 300).astype(float)
    trained = np.full(300, 60.0)
    generate_s, train_s = generated * 0.4 * rng.gamma(9, 1 / 9, 300), trained * 0.1 * rng.gamma(9, 1 / 9, 300)
    found = estimate_mu(generate_s, generated, train_s, trained, rng)
    assert found.value == pytest.approx(generate_s.sum() / generated.sum() / (train_s.sum() / trained.sum()))
    assert found.low < 4.0 < found.high
    assert found.high - found.low < 0.5


def test_mu_when_nothing_was_generated_is_refused() -> None:
    with pytest.raises(DataError, match="mu needs positive"):
        estimate_mu(np.ones(3), np.zeros(3), np.ones(3), np.ones(3), np.random.default_rng(0))


@pytest.mark.parametrize(("correlation", "expected"), [(0.04, 0.2), (0.0, 0.0), (0.5, 1.0)])
def test_correlation_limit_when_gradients_share_a_part_is_r_times_it(correlation, expected) -> None:
    rng, dimension = np.random.default_rng(0), 400
    rows = []
    for _ in range(200):
        n, m = rng.integers(5, 20, 2)
        shared = np.sqrt(correlation) * rng.standard_normal(dimension)
        own = np.sqrt(1 - correlation) * rng.standard_normal((n + m, dimension))
        fresh, replayed = (own[:n] + shared).sum(0), (own[n:] + shared).sum(0)
        rows.append((fresh @ fresh, fresh @ replayed, n, m))
    found = estimate_correlation_limit(*np.array(rows, float).T, 5.0, rng)
    assert found.value == pytest.approx(expected, abs=0.02)
    assert found.low <= min(expected, found.value) + 0.02 and found.high >= found.value


def test_correlation_limit_when_batches_are_all_fresh_is_refused() -> None:
    with pytest.raises(DataError, match="fresh and with replayed"):
        estimate_correlation_limit(np.ones(2), np.ones(2), np.ones(2), np.zeros(2), 1.0, np.random.default_rng(0))
