"""Priorities and metadata written back by rollout id: they land on their rollout or nowhere."""

import numpy as np
import pytest
from rollout_makers import groups, plain, same_rollout

from ostinato.buffer import (
    KeepBest,
    MinSize,
    Oldest,
    ReplayBuffer,
)
from ostinato.buffer.sampling import Prioritized
from ostinato.errors import DataError
from ostinato.rollouts import ROW_COLUMNS

RNG = np.random.default_rng


@pytest.mark.parametrize("retention", [[], [KeepBest()]])
def test_write_back_when_its_rollout_was_replaced_is_ignored_and_counted(retention) -> None:
    buffer = ReplayBuffer(4, sampler=Prioritized(), retention=retention, limiter=MinSize(1))
    buffer.add(plain(4), train_step=0, priorities=[1.0, 1, 1, 1])
    draw = buffer.sample(16, train_step=0, rng=RNG(0))
    buffer.add(plain(4, first=4), train_step=1, priorities=[2.0, 2, 2, 2])  # on their places
    for ids, values in ((draw.rollout_ids, np.full(16, 99.0)), ([0, 4, 77], [9.0, 5.0, 9.0])):
        buffer.update_priorities(ids, values)
    assert buffer.columns["rollout_id"].tolist() == [4, 5, 6, 7]
    assert buffer.columns["priority"].tolist() == [5.0, 2, 2, 2]
    assert buffer.update([1, 2, 5], reward=[8.0, 8.0, 3.0]) == 1
    assert buffer.columns["reward"].tolist() == [0.0, 3.0, 0, 0]
    assert buffer.metrics()["stale_updates"] == 16 + 2 + 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-300, -1.0])
def test_priority_when_without_meaning_is_refused_at_the_write_and_changes_nothing(bad) -> None:
    buffer = ReplayBuffer(4, sampler=Prioritized(), limiter=MinSize(1))
    buffer.add(plain(3), train_step=0, priorities=[1.0, 2.0, 3.0])
    before = buffer.state_arrays()
    with pytest.raises(DataError, match="priority of rollout id 2 is"):
        buffer.update_priorities([0, 2], [5.0, bad])
    with pytest.raises(DataError, match="priority of rollout 1 is"):
        buffer.add(plain(2, first=3), train_step=0, priorities=[1.0, bad])
    for wrong in ([[1.0]], ["a"], [1.0, 2.0], [True]):
        with pytest.raises(DataError, match="priorities are"):
            buffer.update_priorities([0], wrong)
    after = buffer.state_arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert set(buffer.sample(60, train_step=0, rng=RNG(0)).rollout_ids) == {0, 1, 2}


def test_priorities_when_equal_or_all_zero_draw_evenly_and_compare_no_payload() -> None:
    buffer = ReplayBuffer(6, sampler=Prioritized(stratified=False), retention=[KeepBest()], limiter=MinSize(1))
    extras = {"image": np.zeros((6, 3, 8, 8))}
    for value in (0.0, 7.0, 0.0):
        buffer.add(plain(6, extras=extras), train_step=0, priorities=value)
        held = buffer.columns["rollout_id"]
        drawn = buffer.sample(6000, train_step=0, rng=RNG(1)).rollout_ids
        assert np.abs(np.bincount(np.searchsorted(held, drawn), minlength=6) - 1000).max() < 150
        buffer.update_priorities(held.copy(), np.zeros(6))
        drawn = buffer.sample(6000, train_step=0, rng=RNG(2)).rollout_ids
        assert np.abs(np.bincount(np.searchsorted(held, drawn), minlength=6) - 1000).max() < 150


def test_metadata_when_written_leaves_the_payload_alone_and_payload_the_metadata() -> None:
    buffer, given = ReplayBuffer(12, sampler=Oldest()), groups(RNG(0), [4, 4], extras="ragged")
    buffer.add(given, train_step=0)
    written = {
        "reward": 3.5,
        "advantage": -2.0,
        "group_reward_mean": 0.25,
        "group_reward_std": 0.75,
        "temperature": 0.5,
    }
    assert buffer.update([6, 1], **written, truncated=np.array([True, False])) == 2
    buffer.update_priorities([1], [9.0])
    draw = buffer.sample(8, train_step=0, rng=RNG(0)).rollouts
    for i in range(8):
        assert same_rollout(draw, i, given, i, scalars=False)
        for name in ROW_COLUMNS:
            if i in (1, 6) and (name in written or name == "truncated"):
                continue
            assert getattr(draw, name)[i] == getattr(given, name)[i]
    assert {name: getattr(draw, name)[6] for name in written} == written and draw.truncated[6] and not draw.truncated[1]
    before = {
        name: column[:8].copy() for name, column in ((n, buffer.columns[n]) for n in ("reward", "uses", "priority"))
    }
    buffer.add(groups(RNG(1), [4], extras="ragged"), train_step=0)
    assert all(np.array_equal(buffer.columns[name][:8], column) for name, column in before.items())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tokens": [1]}, "column 'tokens' cannot be written back"),
        ({"policy_version_min": [1]}, "column 'policy_version_min' cannot be written back"),
        ({"group_id": [1]}, "column 'group_id' cannot be written back"),
        ({"reward": [np.nan]}, "reward holds a number that is not finite"),
        ({"reward": [1.0, 2.0]}, r"reward is float64 \(2,\), expected float64 \(1,\)"),
        ({"truncated": [1.0]}, r"truncated is float64 \(1,\), expected bool \(1,\)"),
        ({"top_k": [1 << 40]}, "top_k"),
        ({"advantage": [1.0], "reward": [np.inf]}, "reward holds a number that is not finite"),
    ],
)
def test_metadata_when_they_cannot_be_written_change_nothing(columns, message) -> None:
    buffer = ReplayBuffer(4)
    buffer.add(plain(2), train_step=0)
    before = buffer.state_arrays()
    with pytest.raises(DataError, match=message):
        buffer.update([0], **columns)
    after = buffer.state_arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_write_backs_when_of_nothing_are_fine() -> None:
    buffer = ReplayBuffer(4)
    buffer.add(plain(2), train_step=0)
    assert buffer.update_priorities([], []) == 0 == buffer.remove([])
    assert buffer.update([], reward=[], truncated=[], top_k=[], advantage=[]) == 0
    assert buffer.add(plain(0), train_step=0).tolist() == []
