"""Admission: which new rollouts are refused, and as what they are counted."""

import numpy as np
import pytest

from ostinato.buffer.admission import Correct, FiniteLogprobs, Informative, admitted
from ostinato.errors import ConfigError, DataError
from ostinato.rollouts import Rollouts


def rollouts(logprobs: list[list[float]], **columns) -> Rollouts:
    n = len(logprobs)
    return Rollouts.from_completions([[1, 2]] * n, [[3] * len(row) for row in logprobs], logprobs, **columns)


def test_informative_when_a_group_has_equal_rewards_refuses_it() -> None:
    given = rollouts([[0.0]] * 4, group_reward_std=[0.0, 0.5, np.nan, 1e-9])
    assert Informative()(given).tolist() == [False, True, False, True]


def test_finite_logprobs_when_one_token_is_not_refuses_the_row_alone() -> None:
    given = rollouts([[-1.0, float("nan")], [], [-1.0], [float("-inf")], [-2.0, -3.0]])
    assert FiniteLogprobs()(given).tolist() == [False, True, True, False, True]
    bare = Rollouts.from_completions([[]] * 3, [[3], [], [3, 4]], [[-1.0], [], [float("nan"), -1.0]])
    assert FiniteLogprobs()(bare).tolist() == [True, True, False]


def test_correct_when_at_the_threshold_refuses_and_above_lets_in() -> None:
    assert Correct(0.5)(rollouts([[]] * 3, reward=[0.5, 0.6, np.nan])).tolist() == [False, True, False]
    with pytest.raises(ConfigError, match="threshold must be a finite number, got nan"):
        Correct(float("nan"))


def test_rules_when_composed_count_each_refusal_once_for_the_first() -> None:
    given = rollouts(
        [[0.0], [float("nan")], [float("nan")], [0.0]], group_reward_std=[1.0, 0.0, 1.0, 0.0], reward=[1.0, 1.0, 1.0, 0]
    )
    mask, refused = admitted([Informative(), FiniteLogprobs(), Correct(0.0)], given)
    assert mask.tolist() == [True, False, False, False]
    assert refused == {"uninformative": 2, "nonfinite_logprobs": 1, "incorrect": 0}
    mask, refused = admitted([], given)
    assert mask.tolist() == [True] * 4 and refused == {}
    assert admitted([Informative()], given.select([]))[0].tolist() == []


def test_rule_when_it_returns_rows_for_a_mask_is_refused() -> None:
    class Rows:
        name = "rows"

        def __call__(self, rollouts):
            return np.array([0, 1])

    with pytest.raises(DataError, match=r"admission rule 'rows' returned int64 \(2,\), expected bool \(2,\)"):
        admitted([Rows()], rollouts([[0.0], [0.0]]))
