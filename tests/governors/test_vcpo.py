"""The learning rate that follows the effective sample size, and the baseline of least variance: VCPO."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DataError
from ostinato.governors import LearningRateSettings, learning_rate_scale, off_policy_baselines
from ostinato.stats import rollout_figures


def figures_of(log_ratio: list[float], *, empty: int = 0) -> dict[str, np.ndarray]:
    """Rollouts of one token each, then empty ones."""
    x = np.array([*log_ratio, *[0.0] * empty])[:, None]
    mask = np.arange(len(x))[:, None] < len(log_ratio)
    return rollout_figures(x, np.zeros_like(x), mask, np.zeros(x.shape, np.bool_))


WEIGHTS = [math.log(w) for w in (2, 1, 0.5, 0.5)]


@pytest.mark.parametrize(
    ("base", "rule", "rate"),
    [(1.0, "sqrt", 8.528e-7), (0.55, "sqrt", 1e-6), (1.0, "linear", 7.27273e-7), (0.8, "linear", 9.09091e-7)],
)
def test_rate_when_four_weights_differ_is_the_hand_worked_one(base, rule, rate) -> None:
    scale = learning_rate_scale(figures_of(WEIGHTS), LearningRateSettings(base=base, rule=rule))
    assert 1e-6 * scale == pytest.approx(rate, rel=1e-5)
    with_empty = learning_rate_scale(figures_of(WEIGHTS, empty=5), LearningRateSettings(base=base, rule=rule))
    assert with_empty == scale


@pytest.mark.parametrize("log_ratio", [[], [0.0], [3.0] * 5, [-1e4, -1e4]])
def test_rate_when_weights_are_equal_or_absent_is_whole(log_ratio) -> None:
    assert learning_rate_scale(figures_of(log_ratio, empty=1), LearningRateSettings()) == 1.0


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=9), st.floats(0.05, 1.0))
@settings(deadline=None)
def test_rate_when_weights_are_extreme_is_a_share_and_sqrt_is_the_milder_rule(values, base) -> None:
    figures = figures_of(values)
    root, line = (
        learning_rate_scale(figures, LearningRateSettings(base=base, rule=rule)) for rule in ("sqrt", "linear")
    )
    assert 0 < line <= root <= 1
    assert root**2 == pytest.approx(line)
    assert line >= 1 / len(values)


def test_rate_when_its_settings_or_figures_cannot_be_used_is_refused() -> None:
    for base in (0.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="base must be"):
            LearningRateSettings(base=base)
    with pytest.raises(ConfigError, match="rule must be one of 'sqrt', 'linear', got 'cubic'"):
        LearningRateSettings(rule="cubic")
    with pytest.raises(DataError, match="figures lack 'tokens'"):
        learning_rate_scale({}, LearningRateSettings())


GRADIENT = np.array([4.0, 1.0, 1.0, 1.0])
REWARDS = np.array([1.0, 0.0, 1.0, 0.0])
GROUP = np.zeros(4, np.int64)


def test_baseline_when_four_rollouts_differ_is_the_hand_worked_one() -> None:
    baselines = off_policy_baselines(REWARDS, np.array(WEIGHTS), GRADIENT, GROUP)
    assert baselines.tolist() == pytest.approx([0.928571] * 4, abs=1e-6)


def test_baseline_when_groups_are_mixed_looks_at_its_own_group_only() -> None:
    order = np.array([5, 0, 3, 1, 4, 2])
    rewards, log_ratio = np.array([*REWARDS, 3.0, 5.0])[order], np.array([*WEIGHTS, 0.0, 0.0])[order]
    squares, group = np.array([*GRADIENT, 1.0, 3.0])[order], np.array([9, 9, 9, 9, 2, 2])[order]
    baselines = off_policy_baselines(rewards, log_ratio, squares, group)
    expected = np.where(group == 9, 0.928571, (3.0 * 1 + 5.0 * 3) / 4)
    np.testing.assert_allclose(baselines, expected, atol=1e-6)


def test_baseline_when_weights_and_gradients_are_equal_is_the_mean() -> None:
    assert off_policy_baselines(REWARDS, np.full(4, 7.0), np.full(4, 2.0), GROUP).tolist() == pytest.approx([0.5] * 4)
    assert off_policy_baselines(REWARDS, np.array(WEIGHTS), np.zeros(4), GROUP).tolist() == pytest.approx([0.5] * 4)


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.lists(st.floats(0.1, 9), min_size=4, max_size=4))
@settings(deadline=None)
def test_baseline_when_moved_either_way_makes_the_squared_gradient_larger(log_ratio, squares) -> None:
    log_ratio, squares = np.array(log_ratio), np.array(squares)
    baseline = off_policy_baselines(REWARDS, log_ratio, squares, GROUP)[0]

    def spread(b: float) -> float:
        return float((np.exp(2 * log_ratio) * (REWARDS - b) ** 2 * squares).sum())

    assert spread(baseline) <= min(spread(baseline + 0.01), spread(baseline - 0.01))


def test_baseline_when_weights_are_extreme_is_that_of_the_rollout_that_rules() -> None:
    assert off_policy_baselines(REWARDS, np.array([1e4, -1e4, 0.0, 1.0]), GRADIENT, GROUP).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_ratio_n": np.zeros(3)}, r"log_ratio_n needs \(4,\) finite numbers, got shape \(3,\)"),
        ({"rewards_n": np.array([0.0, math.nan, 0.0, 0.0])}, r"rewards_n needs \(4,\) finite numbers"),
        ({"gradient_square_n": -GRADIENT}, "gradient_square_n must be at least 0, got -4"),
    ],
)
def test_baseline_when_numbers_are_impossible_is_refused(change, message) -> None:
    arrays = {"rewards_n": REWARDS, "log_ratio_n": np.zeros(4), "gradient_square_n": GRADIENT, "group_id_n": GROUP}
    with pytest.raises(DataError, match=message):
        off_policy_baselines(**arrays | change)
