"""Eviction orders besides positive bias: oldest, best, uniform sample, FreshPER's score."""

import itertools
import math

import numpy as np
import pytest
from held import Rows
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from ostinato.buffer.retention import KeepBest, MaxStaleness, OldestFirst, Reservoir, SmartEviction
from ostinato.buffer.retention.ranked import lottery
from ostinato.errors import ConfigError


def test_oldest_first_when_full_keeps_the_newest() -> None:
    rows = Rows(5, order=OldestFirst())
    for n in (3, 3, 5, 0, 2):
        rows.add(n)
    assert rows.ids() == [8, 9, 10, 11, 12]
    rows.short_of_bytes(2)
    assert rows.ids() == [10, 11, 12]
    rows.short_of_bytes(9)
    assert rows.ids() == []


def test_keep_best_when_full_drops_the_lowest_and_of_equal_ones_the_older() -> None:
    rows = Rows(3, order=KeepBest("reward"))
    rows.add(3, reward=[2.0, 1.0, 1.0])
    rows.add(1, reward=1.0)
    assert rows.ids() == [0, 2, 3]
    rows.add(1, reward=0.5)  # a newcomer below all others leaves at once
    assert rows.ids() == [0, 2, 3]
    rows.add(2, reward=[9.0, float("nan")])
    assert rows.ids() == [0, 3, 5]
    rows.short_of_bytes(1)
    assert rows.ids() == [0, 5]


def test_keep_best_when_a_priority_is_written_back_moves_the_rollout() -> None:
    rows = Rows(3, order=KeepBest())
    rows.add(3, priority=[1.0, 2.0, 3.0])
    rows.write([0], priority=9.0)
    rows.write([2], priority=0.0)
    rows.add(1, priority=5.0)
    assert rows.ids() == [0, 1, 3]
    rows.write([0], priority=1.0)  # back to a value that stands in the heap already
    rows.add(1, priority=5.0)
    assert rows.ids() == [1, 3, 4]


def test_keep_best_when_by_a_function_scores_the_rows_it_is_given() -> None:
    rows = Rows(2, order=KeepBest(lambda columns, rows: -np.abs(columns["reward"][rows] - 0.5)))
    rows.add(2, reward=[0.0, 1.0])
    rows.add(2, reward=[0.4, 0.9])
    assert rows.ids() == [2, 3]


def test_keep_best_when_asked_twice_answers_the_same() -> None:
    rows = Rows(9, order=KeepBest("reward"))
    rows.add(5, reward=[5.0, 1.0, 4.0, 2.0, 3.0])
    for _ in range(2):
        assert rows.order.next_victims(rows.held, 2).tolist() == [1, 3]
    rows.drop(np.array([1]))
    assert rows.order.next_victims(rows.held, 2).tolist() == [3, 4]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "write", "drop", "bytes", "compact", "step"]), st.integers(0, 4)), max_size=40
)


@given(st.integers(1, 6), ACTIONS, st.integers(0, 10**6))
def test_keep_best_when_driven_at_random_agrees_with_a_sorted_list(capacity, actions, seed) -> None:
    rows, rng = Rows(capacity, order=KeepBest(), rules=(MaxStaleness(2),)), np.random.default_rng(seed)
    model: dict[int, tuple[float, int]] = {}  # id -> score, version
    number = step = 0

    def drop_lowest(n: int) -> None:
        for rollout_id in sorted(model, key=lambda i: (model[i][0], i))[: max(0, n)]:
            del model[rollout_id]

    for action, n in actions:
        if action == "add":
            scores = rng.integers(0, 4, size=n).astype(float)
            rows.add(n, priority=scores, policy_version_min=step, step=step)
            model |= {number + i: (float(scores[i]), step) for i in range(n)}
            number += n
            drop_lowest(len(model) - capacity)
        elif action == "write" and model:
            chosen = [int(i) for i in rng.choice(sorted(model), size=min(n, len(model)), replace=False)]
            scores = rng.integers(0, 4, size=len(chosen)).astype(float)
            rows.write(chosen, priority=scores)
            model |= {i: (float(score), model[i][1]) for i, score in zip(chosen, scores, strict=True)}
        elif action == "drop" and model:
            gone = sorted(model)[n % len(model)]
            del model[gone]
            rows.drop(rows.held.rows_of([gone]))
        elif action == "bytes":
            drop_lowest(n)
            rows.short_of_bytes(n)
        elif action == "step":
            step += n
            rows.held.train_step = step
            rows.expire(np.array([], np.int64))
            model = {i: row for i, row in model.items() if step - row[1] <= 2}
        elif action == "compact":
            rows.compact()
        assert rows.ids() == sorted(model)


def test_keep_best_when_rollouts_leave_in_other_ways_does_not_grow() -> None:
    order = KeepBest()
    rows = Rows(5, order=order, rules=(MaxStaleness(0),))
    for step in range(3000):
        rows.add(1, step=step, policy_version_min=step, priority=float(step))
    assert rows.ids() == [2999] and len(order._heap) <= 2 * 5 + 1024 + 1 and len(order._scores) <= len(order._heap)


@pytest.mark.parametrize("order", [KeepBest(), OldestFirst(), Reservoir(3), SmartEviction(10.0)], ids=repr)
def test_orders_when_there_is_room_let_everybody_stay(order) -> None:
    rows = Rows(6, order=order)
    rows.add(3)
    rows.add(3)
    assert rows.ids() == [0, 1, 2, 3, 4, 5]
    assert order.victims(rows.held, -4, 3).tolist() == [] == order.next_victims(rows.held, 0).tolist()


def test_reservoir_when_counted_over_seeds_holds_every_pair_equally_often() -> None:
    counts = dict.fromkeys(itertools.combinations(range(6), 2), 0)
    for seed in range(3000):
        rows = Rows(2, order=Reservoir(seed))
        for n in (2, 1, 2, 1):
            rows.add(n)
        counts[tuple(rows.ids())] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("capacity", [1, 3, 5])
def test_reservoir_when_the_stream_is_long_samples_all_of_it(capacity) -> None:
    held = []
    for seed in range(400):
        rows = Rows(capacity, order=Reservoir(seed))
        for _ in range(20):
            rows.add(1)
        held += rows.ids()
    counts = np.bincount(held, minlength=20)
    assert counts.sum() == 400 * capacity
    assert chisquare(counts).pvalue > 1e-3


def test_reservoir_when_bytes_halve_it_is_the_smaller_sample_of_the_same_stream() -> None:
    large, small = Rows(6, order=Reservoir(5)), Rows(3, order=Reservoir(5))
    for _ in range(30):
        large.add(2)
        small.add(2)
    assert set(small.ids()) < set(large.ids())
    large.short_of_bytes(3)
    assert large.ids() == small.ids()
    large.compact()  # a rebuilt order draws the same lottery
    large.capacity = 3
    large.add(3)
    small.add(3)
    assert large.ids() == small.ids()


def test_lottery_when_drawn_is_uniform_and_differs_by_seed() -> None:
    ids = np.arange(20_000)
    one, two = lottery(0, ids), lottery(1, ids)
    assert kstest(one, "uniform").pvalue > 1e-3 and kstest(lottery(7, 3 * ids + 1), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(one, two)[0, 1]) < 4 / math.sqrt(len(ids))
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 4 / math.sqrt(len(ids))
    assert lottery(0, np.array([0, 1])).tolist() == one[:2].tolist()


def test_smart_eviction_when_given_the_worked_leaf_scores_as_worked() -> None:
    order = SmartEviction(500.0, leaf=lambda columns, rows: np.full(len(rows), 0.786628))
    rows = Rows(9, order=order)
    rows.add(1, uses=3)
    rows.held.train_step = 200
    assert order.scores(rows.held, np.array([0]))[0] == pytest.approx(0.578992, abs=5e-7)


def test_smart_eviction_when_the_leaf_comes_from_the_priority_scores_as_worked() -> None:
    order = SmartEviction(500.0, exponent=0.6)
    rows = Rows(9, order=order)
    rows.add(1, uses=3, priority=1 + 1e-6)
    rows.held.train_step = 200
    assert order.scores(rows.held, np.array([0]))[0] == pytest.approx(0.578992, abs=5e-7)
    rows.held.write(np.array([0]), priority=0.0)  # the floor of the released code: 1e-8 ** 0.6
    assert order.scores(rows.held, np.array([0]))[0] == pytest.approx(0.4 / (1e-8**0.6 + 1e-6) * (1 + math.log(4) / 10))


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2)), min_size=1, max_size=12
    ),
    st.integers(1, 12),
)
def test_smart_eviction_when_asked_takes_the_greatest_scores_and_of_equal_ones_the_oldest(given_rows, n) -> None:
    order = SmartEviction(5.0)
    rows = Rows(99, order=order)
    steps, priorities, uses = (list(column) for column in zip(*given_rows, strict=True))
    rows.add(len(steps), insert_step=steps, priority=priorities, uses=uses, step=3)
    scores = order.scores(rows.held, rows.held.live()).tolist()
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:n]
    assert order.next_victims(rows.held, n).tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SmartEviction(0.0), "tau must be above 0, got 0.0"),
        (lambda: SmartEviction(float("inf")), "tau must be a finite number, got inf"),
        (lambda: SmartEviction(1.0, exponent=float("nan")), "exponent must be a finite number, got nan"),
        (lambda: KeepBest(3), "by must be a column or a function of columns and rows, got 3"),
        (lambda: Rows(2, order=KeepBest("rewards")), "KeepBest: no column 'rewards'"),
        (lambda: Reservoir(-1), "seed must be at least 0, got -1"),
        (lambda: Reservoir(0.5), "seed must be an integer, got 0.5"),
    ],
)
def test_orders_when_impossible_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
