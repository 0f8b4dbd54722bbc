"""Rules: uses, age of the oldest token, newest per prompt; against slow references."""

import numpy as np
import pytest
from held import Rows
from hypothesis import given
from hypothesis import strategies as st

from ostinato.buffer.retention import (
    KeepBest,
    MaxStaleness,
    MaxUses,
    NewestPerPrompt,
    OldestFirst,
    PositiveBias,
    split_retention,
)
from ostinato.buffer.retention.arrivals import where_newest_begin
from ostinato.buffer.table import Table
from ostinato.errors import ConfigError


def test_max_staleness_when_at_the_bound_stays_and_one_above_goes() -> None:
    rows = Rows(99, rules=(MaxStaleness(2),))
    rows.add(4, policy_version_min=[3, 1, 0, 2], step=3)
    assert rows.ids() == [0, 1, 3]  # age 3 went at once
    rows.held.train_step = 4
    rows.expire(np.array([], np.int64))
    assert rows.ids() == [0, 3]


def test_max_staleness_when_zero_keeps_only_the_current_weights() -> None:
    rows = Rows(99, rules=(MaxStaleness(0),))
    rows.add(2, policy_version_min=[5, 4], step=5)
    assert rows.ids() == [0]


def test_max_staleness_when_rollouts_left_otherwise_forgets_them() -> None:
    rule = MaxStaleness(10**9)
    rows = Rows(5, rules=(rule,), order=OldestFirst())
    for step in range(1500):
        rows.add(2, policy_version_min=step, step=step)
    assert rows.ids() == list(range(2995, 3000))
    assert rule._versions.size <= 2 * 5 + 1024 + 2 and len(rule._versions.ids) <= rule._versions.size


def test_max_uses_when_reached_removes_the_row() -> None:
    rows = Rows(99, rules=(MaxUses(2),))
    rows.add(3)
    rows.use(np.array([1]))
    assert rows.ids() == [0, 1, 2]
    rows.use(np.array([1, 2]))
    assert rows.ids() == [0, 2]
    rows.use(np.array([0]))
    rows.held.write(np.array([2]), uses=7)
    rows.expire(None)
    assert rows.ids() == [0]


def test_newest_per_prompt_when_a_prompt_is_full_drops_its_oldest() -> None:
    rows = Rows(99, rules=(NewestPerPrompt(2),))
    rows.add(4, prompt_id=[7, 8, 7, 7])
    assert rows.ids() == [1, 2, 3]
    rows.add(2, prompt_id=[8, 8])
    assert rows.ids() == [2, 3, 4, 5]
    rows.drop(rows.held.rows_of([3]))
    rows.add(1, prompt_id=7)  # one of the two of prompt 7 had left another way
    assert rows.ids() == [2, 4, 5, 6]


def test_rules_when_one_row_breaks_two_drop_it_once() -> None:
    rows = Rows(99, rules=(MaxUses(1), MaxStaleness(1), NewestPerPrompt(3)))
    rows.add(4, policy_version_min=[0, 1, 1, 1], step=1)
    assert rows.ids() == [1, 2, 3]
    rows.held.train_step = 3
    rows.use(np.array([2]))
    assert rows.ids() == []


@given(
    st.integers(0, 4),
    st.lists(
        st.tuples(st.sampled_from(["add", "step", "use", "compact", "afresh", "drop"]), st.integers(0, 5)), max_size=40
    ),
)
def test_rules_when_driven_at_random_agree_with_lists(bound, actions) -> None:
    rows = Rows(99, rules=(MaxStaleness(bound), MaxUses(3), NewestPerPrompt(4)))
    model: list[dict] = []
    step = number = 0
    rng = np.random.default_rng(bound + len(actions))
    for action, n in actions:
        if action == "add":
            versions = rng.integers(max(0, step - 4), step + 1, size=n)
            prompts = rng.integers(0, 3, size=n)
            model += [
                {"id": number + i, "version": versions[i], "prompt": prompts[i], "uses": 0, "alive": True}
                for i in range(n)
            ]
            number += n
            rows.add(n, policy_version_min=versions, prompt_id=prompts, step=step)
        elif action == "step":
            step += n
            rows.held.train_step = step
            rows.expire(np.array([], np.int64))
        elif action == "use" and model:
            chosen = sorted({int(i) for i in rng.integers(len(model), size=n)})
            for i in chosen:
                model[i]["uses"] += 1
            rows.use(rows.held.rows_of([model[i]["id"] for i in chosen]))
        elif action == "drop" and model:
            gone = model.pop(n % len(model))
            rows.drop(rows.held.rows_of([gone["id"]]))
        elif action == "compact":
            rows.compact()
            rows.expire(None)
        elif action == "afresh":
            rows.expire(None)
        model = [row for row in model if step - row["version"] <= bound and row["uses"] < 3]
        newest = {p: [row["id"] for row in model if row["prompt"] == p][-4:] for p in range(3)}
        model = [row for row in model if row["id"] in newest[row["prompt"]]]
        assert rows.ids() == [row["id"] for row in model]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxUses(0), "max_uses must be at least 1, got 0"),
        (lambda: MaxUses(1.5), "max_uses must be an integer, got 1.5"),
        (lambda: MaxUses(True), "max_uses must be an integer, got True"),
        (lambda: MaxStaleness(-1), "max_staleness must be at least 0, got -1"),
        (lambda: MaxStaleness(float("nan")), "max_staleness must be an integer, got nan"),
        (lambda: NewestPerPrompt(0), "rollouts kept per prompt must be at least 1, got 0"),
        (
            lambda: split_retention([KeepBest(), PositiveBias(0.5, 0.0)]),
            "at most one eviction order, got KeepBest.* and PositiveBias",
        ),
        (lambda: split_retention([MaxUses(1), "fifo"]), "rules and at most one eviction order, got 'fifo'"),
    ],
)
def test_settings_when_impossible_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_retention_when_split_has_rules_in_order_and_the_oldest_leave_by_default() -> None:
    one, two, order = MaxUses(1), MaxStaleness(3), KeepBest()
    assert split_retention([one, order, two]) == ((one, two), order)
    assert split_retention([]) == ((), OldestFirst())


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 300), st.integers(0, 3))
def test_rows_when_searched_from_either_end_are_those_of_a_full_look(alive, n, repeats) -> None:
    rows = Rows(9999)
    alive = np.array(alive * 10**repeats, np.bool_)[:3000]
    rows.held.append(len(alive), alive=alive)
    live = np.flatnonzero(alive).tolist()
    table = Table()
    table.compact(len(alive))
    table.append(len(alive))
    table["alive"][:] = alive
    table.count_dead(len(alive) - len(live), live[0] if live else len(alive))
    assert table.oldest(n).tolist() == live[:n]
    n = min(n, len(live))
    begin = where_newest_begin(rows.held, n)
    assert np.flatnonzero(alive[begin:]).tolist() == [row - begin for row in live[len(live) - n :]]
    assert n == 0 or alive[begin]
