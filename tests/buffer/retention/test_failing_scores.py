"""A score function that fails is named, changes nothing, and is asked again once its input is mended."""

import numpy as np
import pytest

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.retention import KeepBest, SmartEviction
from ostinato.errors import DataError
from ostinato.rollouts import Rollouts


def raising(columns, rows):
    raise KeyError("entropy")


def short(columns, rows):
    return np.ones(len(rows) + 1)


def not_a_number(columns, rows):
    return np.where(columns["reward"][rows] > 2, np.nan, columns["reward"][rows])


def words(columns, rows):
    return ["high"] * len(rows)


def negative(columns, rows):
    return -np.ones(len(rows))


class Switch:
    """A score function that can be broken and mended."""

    __name__ = "switch"

    def __init__(self) -> None:
        self.broken_by = None

    def __call__(self, columns, rows):
        return columns["reward"][rows] if self.broken_by is None else self.broken_by(columns, rows)


def rollouts(*reward: float) -> Rollouts:
    n = len(reward)
    return Rollouts.from_completions([[1, 2]] * n, [[3]] * n, [[-0.5]] * n, reward=list(reward))


def held(buffer: ReplayBuffer) -> list[int]:
    return buffer.columns["rollout_id"].tolist()


FAILURES = [
    (raising, "raised KeyError: 'entropy'"),
    (short, "gives float64 .* rows, expected numbers"),
    (not_a_number, "gives NaN for rollout 3"),
    (words, "gives <U4 .* rows, expected numbers"),
]


@pytest.mark.parametrize(("failure", "message"), FAILURES)
def test_keep_best_when_its_function_fails_refuses_the_add_and_goes_on_when_mended(failure, message) -> None:
    by = Switch()
    buffer = ReplayBuffer(3, retention=[KeepBest(by)])
    buffer.add(rollouts(2.0, 1.0, 1.5), train_step=0)
    by.broken_by = failure
    for _ in range(2):
        with pytest.raises(DataError, match=f"score function of KeepBest, switch {message}"):
            buffer.add(rollouts(3.0), train_step=1)
        assert held(buffer) == [0, 1, 2]
    by.broken_by = None
    buffer.add(rollouts(3.0), train_step=1)
    assert held(buffer) == [0, 2, 3]
    buffer.check()


@pytest.mark.parametrize(("failure", "message"), FAILURES)
def test_keep_best_when_its_function_fails_is_not_in_the_way_of_other_calls(failure, message) -> None:
    by, rng = Switch(), np.random.default_rng(0)
    buffer = ReplayBuffer(4, retention=[KeepBest(by)])
    buffer.add(rollouts(2.0, 1.0, 1.5, 0.5), train_step=0)
    by.broken_by = failure
    assert buffer.update([0], reward=0.0) == 1
    assert buffer.update_priorities([1], [2.0]) == 1
    assert buffer.remove([2]) == 1
    assert len(buffer.sample(2, train_step=1, rng=rng)) == 2
    by.broken_by = None
    buffer.add(rollouts(5.0, 5.0), train_step=2)
    assert held(buffer) == [1, 3, 4, 5]  # rollout 0 had got the lowest reward in the meantime


@pytest.mark.parametrize(("failure", "message"), [*FAILURES, (negative, "expected weights of at least 0")])
def test_smart_eviction_when_its_leaf_fails_refuses_the_add(failure, message) -> None:
    leaf = Switch()
    buffer = ReplayBuffer(3, retention=[SmartEviction(5.0, leaf=leaf)])
    buffer.add(rollouts(1.0, 2.0, 1.5), train_step=0)
    leaf.broken_by = failure
    with pytest.raises(DataError, match=f"leaf of SmartEviction.* {message}"):
        buffer.add(rollouts(3.0), train_step=1)
    assert held(buffer) == [0, 1, 2]
    leaf.broken_by = None
    buffer.add(rollouts(3.0), train_step=1)
    assert held(buffer) == [1, 2, 3]  # the least weight of the three of equal age
