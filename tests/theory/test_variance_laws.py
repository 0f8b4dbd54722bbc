"""Variance by age: exact means of measured laws, and isotonic regression against a peer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize

from ostinato.errors import DataError
from ostinato.theory import MeasuredVariance, PowerLaw, monotone


def test_measured_law_when_averaged_equals_the_integral_of_its_broken_line() -> None:
    law = MeasuredVariance([1, 3, 10], [1.0, 2.0, 9.0])
    # Constant 1 up to age 1, then to 2 at 3: (1 + 3) / 3.
    assert float(law.mean_second_moment(3.0)) == pytest.approx(4 / 3)
    for x in (0.3, 1.0, 2.2, 7.7, 10.0, 10.9):
        area = integrate.quad(lambda s: float(law.second_moment(s)), 0, x, points=[p for p in (1, 3, 10) if p < x])[0]
        assert float(law.mean_second_moment(x)) == pytest.approx(area / x)


def test_measured_law_when_asked_beyond_its_ages_refuses() -> None:
    law = MeasuredVariance([0, 4], [1.0, 2.0])
    assert (law.longest, float(law.second_moment(5.0))) == (5.0, 2.0)
    with pytest.raises(DataError, match=r"measured up to age 4, asked for 5\.5"):
        law.second_moment(5.5)


@pytest.mark.parametrize(
    ("ages", "values", "message"),
    [
        ([0, 1], [2.0, 1.0], "must not fall with age: 2 at age 0, 1 at 1"),
        ([1, 1], [1.0, 1.0], "rising"),
        ([-1, 1], [1.0, 1.0], "at least 0"),
        ([0, 1], [0.0, 1.0], "above 0"),
        ([0, 1], [1.0, np.inf], "finite"),
        ([0], [1.0, 2.0], "one length"),
        ([], [], "one length"),
    ],
)
def test_measured_law_when_the_measurement_is_unusable_says_why(ages, values, message) -> None:
    with pytest.raises(DataError, match=message):
        MeasuredVariance(ages, values)


def test_power_law_when_averaged_equals_the_integral() -> None:
    law = PowerLaw(0.3, tau=2.0)
    assert float(law.mean_second_moment(7.0)) == pytest.approx(
        integrate.quad(lambda s: float(law.second_moment(s)), 0, 7)[0] / 7
    )


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.01, 10)), min_size=1, max_size=30))
def test_monotone_when_compared_with_scipy_is_the_same_projection(pairs) -> None:
    values, weights = np.array(pairs).T
    expected = optimize.isotonic_regression(values, weights=weights).x
    assert monotone(values, weights) == pytest.approx(expected, abs=1e-9)


def test_monotone_when_given_weights_pools_by_them() -> None:
    assert monotone([1.0, 4.0, 2.0, 5.0], [1, 1, 3, 1]).tolist() == [1.0, 2.5, 2.5, 5.0]
    with pytest.raises(DataError, match="weights above 0"):
        monotone([1.0], [0.0])
