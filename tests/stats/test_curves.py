"""Smoothing, crossings and savings on curves whose answers are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DataError
from ostinato.stats import compute_to_target, saving, smoothed


def test_smoothed_is_the_mean_of_full_windows_only():
    assert smoothed([1, 2, 6, 3, 8, 0], window=3).tolist() == [3, 11 / 3, 17 / 3, 11 / 3]
    assert smoothed([1, 5], window=1).tolist() == [1, 5]


def test_smoothed_point_sits_at_the_middle_when_evenly_spaced():
    assert smoothed(np.arange(0, 50, 5)) == pytest.approx(np.arange(10, 40, 5))


@given(st.lists(st.floats(0, 10), min_size=5, max_size=20), st.floats(-2, 2), st.floats(-1, 1))
def test_smoothing_both_axes_keeps_a_straight_line_when_unevenly_spaced(steps, slope, offset):
    compute = np.cumsum(steps)
    assert smoothed(slope * compute + offset) == pytest.approx(slope * smoothed(compute) + offset)


def test_smoothed_is_refused_when_the_window_does_not_fit():
    with pytest.raises(DataError, match="at least 5 evaluations, got 4"):
        smoothed([1, 2, 3, 4])
    with pytest.raises(ConfigError, match="window >= 1, got 0"):
        smoothed([1], window=0)


def test_compute_to_target_is_linear_between_points():
    assert compute_to_target([0, 10, 30], [0.1, 0.2, 0.6], 0.5) == pytest.approx(25)
    assert compute_to_target([0, 10, 30], [0.1, 0.2, 0.6], 0.2) == pytest.approx(10)


def test_compute_to_target_takes_the_first_crossing_when_the_curve_comes_back():
    assert compute_to_target([0, 1, 2, 3], [0, 1, 0, 1], 0.5) == 0.5


def test_compute_to_target_when_already_there_or_never():
    assert compute_to_target([2, 3], [0.5, 0.6], 0.5) == 2
    assert compute_to_target([2, 3], [0.5, 0.6], 0.7) is None


def test_compute_to_target_is_refused_when_the_curve_is_broken():
    with pytest.raises(DataError, match="got 1 and 2 points"):
        compute_to_target([1], [0, 1], 0.5)
    with pytest.raises(DataError, match="rising compute"):
        compute_to_target([2, 1], [0, 1], 0.5)


@given(st.floats(0.05, 20), st.floats(0.1, 0.9))
def test_saving_is_one_minus_the_scale_when_the_arm_is_the_baseline_stretched(scale, target):
    compute = np.linspace(0, 100, 41)
    accuracy = 1 - np.exp(-compute / 20)
    needed = [compute_to_target(x, accuracy, target) for x in (scale * compute, compute)]
    assert saving(*needed) == pytest.approx(1 - scale)


@pytest.mark.parametrize(
    ("arm", "baseline", "expected"), [(60, 100, 0.4), (125, 100, -0.25), (None, 100, 0), (10, None, 0), (0, 0, 0)]
)
def test_saving_when_reached_late_or_never(arm, baseline, expected):
    assert saving(arm, baseline) == pytest.approx(expected)
