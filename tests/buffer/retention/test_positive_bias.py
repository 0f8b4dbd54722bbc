"""Positive bias against the paper's example and the whole stream looked at afresh."""

from fractions import Fraction

import numpy as np
import pytest
from held import Rows
from hypothesis import given
from hypothesis import strategies as st

from ostinato.buffer.retention import OldestFirst, PositiveBias
from ostinato.errors import ConfigError

PAPER = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]  # ages 9 to 0


def kept_ages(delta: float, rewards: list[float], capacity: int, at_once: int) -> list[int]:
    rows = Rows(capacity, order=PositiveBias(delta, 0.5))
    for first in range(0, len(rewards), at_once):
        part = rewards[first : first + at_once]
        rows.add(len(part), reward=part)
    return [len(rewards) - 1 - rollout_id for rollout_id in rows.ids()]


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_positive_bias_when_the_paper_draws_it_keeps_the_same_ages(at_once) -> None:
    assert kept_ages(0.5, PAPER, 8, at_once) == [8, 7, 5, 4, 3, 2, 1, 0]
    assert kept_ages(0.75, PAPER, 8, at_once) == [8, 7, 5, 4, 2, 1, 0]
    assert kept_ages(0.75, [1.0, *PAPER], 8, at_once) == [10, 8, 7, 5, 4, 2, 1, 0]
    assert kept_ages(0.0, PAPER, 8, at_once) == [7, 6, 5, 4, 3, 2, 1, 0]
    assert kept_ages(1.0, PAPER, 8, at_once) == [8, 7, 5, 4, 2]


def test_positive_bias_when_few_are_correct_holds_less_than_its_capacity() -> None:
    assert kept_ages(0.5, [0.0] * 40 + [1.0] + [0.0] * 20, 8, 1) == [20, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("delta", "capacity", "newest"),
    [
        (0.9, 10, 1),
        (0.1, 10, 9),
        (0.7, 10, 3),
        (1 / 3, 3, 2),
        (2 / 3, 3, 1),
        (0.2, 4608, 3686),
        (0.5, 7, 3),
        (1.0, 5, 0),
    ],
)
def test_newest_share_when_floating_point_is_off_is_the_floor(delta, capacity, newest) -> None:
    assert PositiveBias(delta, 0.0).newest_share(capacity) == newest


@given(st.integers(0, 1000), st.integers(1, 10**6))
def test_newest_share_when_delta_is_in_thousandths_is_exact(thousandths, capacity) -> None:
    exact = (1 - Fraction(thousandths, 1000)) * capacity
    assert PositiveBias(thousandths / 1000, 0.0).newest_share(capacity) == exact.numerator // exact.denominator


def from_the_whole_stream(rewards: list[float], delta: float, capacity: int) -> list[int]:
    newest = PositiveBias(delta, 0.5).newest_share(capacity)
    ids = list(range(len(rewards)))
    older = ids[: max(0, len(ids) - newest)]
    correct = [i for i in older if rewards[i] > 0.5]
    room = capacity - newest
    return correct[len(correct) - min(room, len(correct)) :] + ids[len(older) :]


@given(
    st.sampled_from([0.0, 0.2, 0.5, 0.75, 1.0]),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30),
    st.integers(0, 10**6),
)
def test_positive_bias_when_asked_bit_by_bit_equals_one_look_at_the_whole_stream(delta, capacity, adds, seed) -> None:
    rows, rewards = Rows(capacity, order=PositiveBias(delta, 0.5)), []
    rng = np.random.default_rng(seed)
    for n, compact in adds:
        fresh = rng.integers(0, 2, size=min(n, capacity)).astype(float).tolist()
        rows.add(len(fresh), reward=fresh)
        rewards += fresh
        if compact:
            rows.compact()
        assert rows.ids() == from_the_whole_stream(rewards, delta, capacity)


def test_positive_bias_when_a_reward_is_written_back_follows_it() -> None:
    rows = Rows(4, order=PositiveBias(0.5, 0.5))
    rows.add(4, reward=[1.0, 1.0, 0.0, 0.0])
    rows.write([1], reward=0.0)  # behind the newest two, judged correct before
    rows.add(1, reward=0.0)
    assert rows.ids() == [0, 3, 4]
    rows.write([3], reward=1.0)  # before it falls behind them
    rows.add(1, reward=0.0)
    assert rows.ids() == [0, 3, 4, 5]


def test_positive_bias_when_a_rule_removes_newer_rows_goes_back_to_older_ones() -> None:
    rows = Rows(4, order=PositiveBias(0.5, 0.5))
    rows.add(4, reward=[1.0, 1.0, 0.0, 0.0])
    rows.drop(rows.held.rows_of([2, 3]))
    rows.add(1, reward=0.0)
    assert rows.ids() == [0, 1, 4]
    rows.add(2, reward=0.0)
    assert rows.ids() == [0, 1, 5, 6]


def test_positive_bias_when_nan_rewards_come_takes_them_for_wrong() -> None:
    assert kept_ages(0.5, [float("nan"), 1.0, 0.0, 0.0], 4, 1) == [2, 1, 0]


def test_positive_bias_when_bytes_run_out_drops_wrong_ones_behind_the_newest_then_the_oldest() -> None:
    rows = Rows(1000, order=PositiveBias(0.5, 0.5))
    rows.add(10, reward=PAPER)
    rows.short_of_bytes(2)  # 8 fit: the 4 newest stay, of the 6 older the wrong ones go
    assert rows.ids() == [1, 2, 4, 5, 6, 7, 8, 9]
    rows.short_of_bytes(1)  # 7 fit: 3 newest; the only wrong one behind them is id 6
    assert rows.ids() == [1, 2, 4, 5, 7, 8, 9]
    rows.short_of_bytes(2)  # 5 fit: 2 newest; behind them all are correct: the oldest go
    assert rows.ids() == [4, 5, 7, 8, 9]
    rows.short_of_bytes(9)
    assert rows.ids() == []


def test_positive_bias_when_bytes_bound_it_in_the_long_run_keeps_its_share() -> None:
    rows, rng = Rows(10**6, order=PositiveBias(0.5, 0.5)), np.random.default_rng(0)
    fifo = Rows(10**6, order=OldestFirst())
    for _ in range(300):
        reward = (rng.random(4) < 0.3).astype(float)
        for store in (rows, fifo):
            store.add(4, reward=reward)
            if len(store.held) > 40:
                store.short_of_bytes(len(store.held) - 40)
    rewards = rows.held["reward"][rows.held.live()]
    assert len(rewards) == 40
    assert rewards[:20].tolist() == [1.0] * 20
    assert rows.ids()[20:] == fifo.ids()[20:]


@pytest.mark.parametrize(
    ("delta", "threshold", "message"),
    [
        (-0.1, 0.0, "delta must lie between 0 and 1, got -0.1"),
        (1.1, 0.0, "delta must lie between 0 and 1, got 1.1"),
        (float("nan"), 0.0, "delta must be a finite number, got nan"),
        (0.5, float("nan"), "threshold must be a finite number, got nan"),
        (0.5, "high", "threshold must be a finite number, got 'high'"),
    ],
)
def test_positive_bias_when_impossible_is_refused(delta, threshold, message) -> None:
    with pytest.raises(ConfigError, match=message):
        PositiveBias(delta, threshold)
