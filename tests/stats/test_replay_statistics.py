"""Replay histograms against the paper's example and the slow reference of `staleness`."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import DataError
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts
from ostinato.staleness import steps_since_last_use
from ostinato.stats import ReplayStatistics


def draw(since, staleness=None, residence=None):
    n = len(since)
    ages = np.arange(n) if staleness is None else np.array(staleness)
    return Draw(
        rollouts=Rollouts.from_completions([[]] * n, [[]] * n, [[]] * n),
        rollout_ids=np.arange(n),
        importance_weights=np.ones(n),
        staleness=ages,
        residence=ages if residence is None else np.array(residence),
        uses=np.zeros(n, np.int64),
        steps_since_last_use=np.array(since, np.int64),
    )


def draws_of(batches):
    return [draw([-1 if gap is None else gap for gap in row]) for row in steps_since_last_use(batches)]


def record(draws):
    statistics = ReplayStatistics()
    for each in draws:
        statistics.record_draw(each)
    return statistics


def test_steps_since_last_use_when_drawn_in_batch_3_and_thrice_in_batch_5():
    batches = [["x"], ["y"], ["x"], ["a"], ["y"], ["a", "a", "a"]]
    assert steps_since_last_use(batches)[3] == [None]
    assert steps_since_last_use(batches)[5] == [2, 0, 0]
    summary = record(draws_of(batches)[3::2]).summary()
    assert summary["new"] == 1
    assert summary["steps_since_last_use"] == {"counts": [2, 0, 1], "mean": 2 / 3}


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=12))
def test_steps_since_last_use_matches_the_slow_reference(batches):
    summary = record(draws_of(batches)).summary()
    gaps = [gap for row in steps_since_last_use(batches) for gap in row]
    seen = [gap for gap in gaps if gap is not None]
    assert summary["new"] == gaps.count(None)
    assert summary["steps_since_last_use"]["counts"] == [seen.count(v) for v in range(max(seen, default=-1) + 1)]


def test_staleness_and_residence_are_counted_apart():
    summary = record([draw([-1, -1], [3, 1], [0, 1]), draw([2, 0], [5, 3], [2, 1])]).summary()
    assert summary["staleness"] == {"counts": [0, 1, 0, 2, 0, 1], "mean": 3.0}
    assert summary["residence"] == {"counts": [1, 2, 1], "mean": 1.0}
    assert summary["new"] == 2


def test_uses_are_counted_when_rollouts_leave_never_used_ones_included():
    statistics = ReplayStatistics()
    statistics.record_left(np.array([4, 0]))
    statistics.record_left(np.array([], np.int64))
    statistics.record_left(np.array([1, 1, 4]))
    assert statistics.summary()["uses"] == {"counts": [1, 2, 0, 0, 2], "mean": 2.0}


def test_mean_is_nan_when_nothing_was_counted():
    assert np.isnan(ReplayStatistics().summary()["uses"]["mean"])


def test_counting_goes_on_when_state_went_through_json():
    batches = [[1, 2], [2, 2], [1, 3]]
    first, second = draws_of(batches)[:1], draws_of(batches)[1:]
    resumed = ReplayStatistics()
    resumed.load_state_dict(json.loads(json.dumps(record(first).state_dict())))
    for each in second:
        resumed.record_draw(each)
    assert resumed.state_dict() == record(first + second).state_dict()


def test_state_is_refused_when_a_histogram_is_missing():
    with pytest.raises(DataError, match="lack 'residence'"):
        ReplayStatistics().load_state_dict({"staleness": [], "uses": [], "steps_since_last_use": [], "new": 0})


def test_draw_is_refused_when_an_age_is_negative():
    with pytest.raises(DataError, match="staleness counts steps or uses and cannot be negative, got -2"):
        record([draw([-1], [-2])])
