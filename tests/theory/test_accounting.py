"""Compute accounting against the numbers of the paper's formulas and against counting by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DataError
from ostinato.theory import compute_ratio, compute_units, fifo_residence, mean_uses, measured_mu

SPLITS = [(7, 1), (6, 2), (5, 3), (4, 4), (2, 6), (1, 7)]


@pytest.mark.parametrize(
    ("mu", "expected"),
    [(5.28, [1.274, 0.637, 0.425, 0.318, 0.212, 0.182]), (6.84, [1.020, 0.510, 0.340, 0.255, 0.170, 0.146])],
)
def test_compute_ratio_gives_the_table_of_the_paper(mu, expected):
    assert [round(compute_ratio(mu, w, t), 3) for w, t in SPLITS] == pytest.approx(expected, abs=5e-4)


def test_compute_ratio_is_one_when_the_split_balances_without_a_buffer():
    assert compute_ratio(4, 4, 1) == 1


@pytest.mark.parametrize(("split", "expected"), [((6, 2), 1.76), ((5, 3), 3.168), ((4, 4), 5.28)])
def test_mean_uses_when_mu_is_5_28(split, expected):
    assert mean_uses(5.28, *split) == pytest.approx(expected)


def test_measured_mu_is_independent_of_repeats():
    # 2 s a generated rollout, 0.5 s a trained one, whatever the replay ratio.
    assert measured_mu(200, 100, 50, 100) == measured_mu(200, 100, 150, 300) == 4


@pytest.mark.parametrize("arguments", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_measured_mu_is_an_error_when_nothing_was_measured(arguments):
    with pytest.raises(DataError, match="mu needs positive"):
        measured_mu(*arguments)


def test_fifo_residence_when_the_paper_prints_it():
    generated_a_step = 60 * 5 / (5.28 * 3)
    assert fifo_residence(252, generated_a_step) == pytest.approx(6.2, abs=0.06)


@given(horizon=st.integers(1, 40), rollouts=st.integers(1, 20))
def test_fifo_residence_equals_the_mean_age_of_a_full_buffer(horizon, rollouts):
    ages = np.repeat(np.arange(horizon), rollouts)
    assert fifo_residence(horizon * rollouts, rollouts) == pytest.approx(ages.mean())


def test_compute_units_of_baseline_updates_are_their_number():
    assert compute_units(7 * 60, 7 * 60, mu=5.28, batch_size=60) == pytest.approx(7)


def test_compute_units_when_each_batch_is_trained_three_times():
    assert compute_units(20, 60, mu=5.28, batch_size=60) == pytest.approx((1 + 5.28 / 3) / (1 + 5.28))


@given(mu=st.floats(0.1, 20), w=st.integers(1, 16), t=st.integers(1, 16))
def test_compute_units_of_an_update_equal_the_compute_ratio_when_nobody_waits(mu, w, t):
    generated = 60 / mean_uses(mu, w, t)
    assert compute_units(generated, 60, mu=mu, batch_size=60) == pytest.approx(compute_ratio(mu, w, t))


@pytest.mark.parametrize("arguments", [(0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, 1, 0), (float("nan"), 1, 1)])
def test_ratios_are_refused_when_a_setting_is_out_of_range(arguments):
    for function in (compute_ratio, mean_uses):
        with pytest.raises(ConfigError, match="expected mu > 0"):
            function(*arguments)


def test_units_and_residence_are_refused_when_a_setting_is_out_of_range():
    with pytest.raises(ConfigError, match="batch_size >= 1"):
        compute_units(1, 1, mu=1, batch_size=0)
    with pytest.raises(ConfigError, match="rollouts_per_step > 0"):
        fifo_residence(10, 0)
