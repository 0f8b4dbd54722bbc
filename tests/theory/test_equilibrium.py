"""A full FIFO buffer: the distributions against scipy and against sums that must come out."""

import numpy as np
import pytest
from scipy import stats

from ostinato.errors import ConfigError
from ostinato.theory import Equilibrium


@pytest.mark.parametrize(("n", "r", "b"), [(252, 12, 60), (8, 8, 3), (60, 1, 60), (20_736, 36, 60)])
def test_uses_when_compared_with_scipy_are_binomial(n, r, b) -> None:
    x = n // r
    assert Equilibrium(n, r, b).uses() == pytest.approx(stats.binom.pmf(np.arange(x * b + 1), x * b, 1 / n), abs=1e-12)
    without = Equilibrium(n, r, b, replacement=False).uses()
    assert without == pytest.approx(stats.binom.pmf(np.arange(x + 1), x, b / n), abs=1e-12)


@pytest.mark.parametrize("replacement", [True, False])
def test_last_use_when_summed_accounts_for_every_sample(replacement) -> None:
    for n, r, b in [(252, 12, 60), (12, 12, 4), (60, 4, 60), (2268, 36, 60)]:
        gaps, new = Equilibrium(n, r, b, replacement).steps_since_last_use()
        assert gaps.sum() + new == pytest.approx(1)
        assert len(gaps) == n // r
        if not replacement:
            assert gaps[0] == pytest.approx(0, abs=1e-12)


def test_last_use_when_a_rollout_stays_two_draws_is_worked_by_hand() -> None:
    # N = 2, R = 1, B = 1: hit with probability 1/2 in each of two draws. Of a life's one use on average: twice hit 1/4
    # (one gap of 1), at least once 3/4 (one first use).
    gaps, new = Equilibrium(2, 1, 1).steps_since_last_use()
    assert gaps.tolist() == [0.0, 0.25] and new == 0.75
    # B = 2 with replacement: q = 1/4, mean hits 1 a draw; repeats inside 2 (1 - 3/4), gaps of one (3/4)^2, over 2.
    gaps, new = Equilibrium(2, 1, 2).steps_since_last_use()
    assert gaps.tolist() == [0.25, 0.28125] and new == pytest.approx((1 - 1 / 16) / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((10, 3, 4), "R that divides N"), ((10, 5, 0), "B >= 1"), ((10, 5, 11, False), "B 11 must not exceed N 10")],
)
def test_equilibrium_when_impossible_names_the_constraint(arguments, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Equilibrium(*arguments)
