"""Rules and orders inside `ReplayBuffer`: rows are renumbered, written, saved, short of bytes, and nothing changes."""

import numpy as np
import pytest
from held import Rows
from hypothesis import given
from hypothesis import strategies as st

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.retention import (
    KeepBest,
    MaxStaleness,
    MaxUses,
    NewestPerPrompt,
    OldestFirst,
    PositiveBias,
    Reservoir,
    SmartEviction,
)
from ostinato.buffer.sampling import Oldest
from ostinato.errors import ConfigError
from ostinato.rollouts import Rollouts

ORDERS = {
    "oldest": OldestFirst,
    "positive bias": lambda: PositiveBias(0.5, 0.5),
    "best priority": KeepBest,
    "best reward": lambda: KeepBest("reward"),
    "reservoir": lambda: Reservoir(7),
    "smart": lambda: SmartEviction(3.0),
}


def rollouts(n: int, *, tokens: int = 1, **columns) -> Rollouts:
    return Rollouts.from_completions([[1]] * n, [[2] * tokens] * n, [[-0.5] * tokens] * n, **columns)


@pytest.mark.parametrize("name", sorted(ORDERS))
@given(
    capacity=st.integers(3, 40),
    actions=st.lists(
        st.tuples(st.sampled_from(["add", "add", "add", "priority", "reward", "remove", "reload"]), st.integers(1, 9)),
        max_size=60,
    ),
    seed=st.integers(0, 10**6),
)
def test_orders_when_in_a_buffer_keep_what_they_keep_among_bare_rows(name, capacity, actions, seed) -> None:
    buffer, rows = ReplayBuffer(capacity, retention=[ORDERS[name]()]), Rows(capacity, order=ORDERS[name]())
    rng = np.random.default_rng(seed)
    for step, (action, n) in enumerate(actions):
        held = rows.ids()
        chosen = rng.permutation(held)[:n].astype(np.int64).tolist()
        values = rng.integers(0, 3, size=len(chosen)).astype(float)
        if action == "add":
            columns = {"reward": rng.integers(0, 2, size=min(n, capacity)).astype(float)}
            priorities = rng.integers(0, 3, size=min(n, capacity)).astype(float)
            buffer.add(rollouts(min(n, capacity), **columns), train_step=step, priorities=priorities)
            rows.add(min(n, capacity), step=step, priority=priorities, **columns)
        elif action == "priority":
            buffer.update_priorities(chosen, values)
            rows.write(chosen, priority=values)
        elif action == "reward":
            buffer.update(chosen, reward=values)
            rows.write(chosen, reward=values)
        elif action == "remove":
            buffer.remove(chosen)
            rows.drop(np.sort(rows.held.rows_of(chosen)))
        else:
            state, buffer = buffer.state_arrays(), ReplayBuffer(capacity, retention=[ORDERS[name]()])
            buffer.load_state_arrays(state)
            rows.compact()
            rows.drop(rows.order.victims(rows.held, len(rows.held) - capacity, 0))
        buffer.check()
        assert buffer.columns["rollout_id"].tolist() == rows.ids()


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_orders_when_their_buffer_loads_another_one_forget_what_they_knew(name) -> None:
    fresh, used = (ReplayBuffer(12, retention=[ORDERS[name]()]) for _ in range(2))
    rng = np.random.default_rng(1)
    for step in range(30):
        used.add(rollouts(4, reward=1.0), train_step=step, priorities=9.0)
    saved = ReplayBuffer(20)
    saved.add(rollouts(20, reward=rng.integers(0, 2, size=20).astype(float)), train_step=0, priorities=rng.random(20))
    for buffer in (fresh, used):
        buffer.load_state_arrays(saved.state_arrays())
    for step in range(1, 20):
        reward, priorities = rng.integers(0, 2, size=3).astype(float), rng.random(3)
        for buffer in (fresh, used):
            buffer.add(rollouts(3, reward=reward), train_step=step, priorities=priorities)
        assert fresh.columns["rollout_id"].tolist() == used.columns["rollout_id"].tolist()


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_orders_when_bytes_are_short_hold_both_bounds_and_nearly_fill_them(name) -> None:
    probe = ReplayBuffer(100)
    probe.add(rollouts(30, tokens=40), train_step=0)
    buffer, rng = ReplayBuffer(10**6, capacity_bytes=probe.nbytes, retention=[ORDERS[name]()]), np.random.default_rng(0)
    for step in range(80):
        given = rollouts(4, tokens=int(rng.integers(1, 80)), reward=rng.integers(0, 2, size=4).astype(float))
        buffer.add(given, train_step=step, priorities=rng.random(4))
        buffer.check()
    assert buffer.nbytes > 0.8 * probe.nbytes


def test_rules_when_composed_with_an_order_hold_together() -> None:
    rules = [MaxUses(2), MaxStaleness(3), NewestPerPrompt(4)]
    buffer = ReplayBuffer(10, sampler=Oldest(), retention=[*rules, KeepBest("reward")])
    rng = np.random.default_rng(0)
    for step in range(60):
        prompts, reward = rng.integers(0, 4, size=4), rng.random(4)
        buffer.add(rollouts(4, prompt_id=prompts, reward=reward, policy_version_min=max(0, step - 2)), train_step=step)
        buffer.sample(2, train_step=step, rng=rng)
        columns = buffer.columns
        assert columns["uses"].max(initial=0) < 2 and len(buffer) <= 10
        assert step - columns["policy_version_min"].min(initial=step) <= 3
        assert np.bincount(columns["prompt_id"], minlength=4).max() <= 4


def test_reservoir_when_dealt_over_buffers_needs_no_state_of_its_own() -> None:
    whole, first, second = (ReplayBuffer(4, retention=[Reservoir(3)]) for _ in range(3))
    for step in range(40):
        whole.add(rollouts(2), train_step=step)
        first.add(rollouts(2), train_step=step)
        if step == 20:
            second.load_state_arrays(first.state_arrays())
            first = second
    assert first.columns["rollout_id"].tolist() == whole.columns["rollout_id"].tolist()


def test_capacity_when_resized_lets_the_right_ones_leave() -> None:
    buffer = ReplayBuffer(6, retention=[PositiveBias(0.5, 0.5)])
    buffer.add(rollouts(6, reward=[1.0, 0.0, 1.0, 0.0, 0.0, 0.0]), train_step=0)
    assert buffer.columns["rollout_id"].tolist() == [0, 2, 3, 4, 5]
    buffer.resize(3)  # one newest, and the two newest correct among the older ones
    assert buffer.columns["rollout_id"].tolist() == [0, 2, 5]


def test_buffer_when_given_an_unknown_column_or_two_orders_is_refused() -> None:
    with pytest.raises(ConfigError, match="KeepBest: no column 'rewards'"):
        ReplayBuffer(4, retention=[KeepBest("rewards")])
    with pytest.raises(ConfigError, match="at most one eviction order"):
        ReplayBuffer(4, retention=[OldestFirst(), Reservoir(0)])


def test_add_when_a_score_function_fails_changes_nothing() -> None:
    def score(columns, rows):
        if (columns["reward"][rows] > 5).any():
            raise ValueError("no score")
        return columns["reward"][rows]

    buffer = ReplayBuffer(2, retention=[KeepBest(score)])
    buffer.add(rollouts(2, reward=[1.0, 2.0]), train_step=0)
    with pytest.raises(ValueError, match="no score"):
        buffer.add(rollouts(1, reward=9.0), train_step=3)
    assert buffer.columns["rollout_id"].tolist() == [0, 1]
    assert buffer.add(rollouts(1, reward=3.0), train_step=1).tolist() == [2]
    assert buffer.columns["rollout_id"].tolist() == [1, 2]
