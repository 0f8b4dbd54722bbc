"""Shards: each rollout in exactly one, equal parts drawn."""

import numpy as np
import pytest

from ostinato.buffer import Oldest, Prioritized, ReplayBuffer, ShardedBuffer
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.rollouts import Rollouts


def rewards(first: int, n: int) -> Rollouts:
    numbers = range(first, first + n)
    return Rollouts.from_completions([[0]] * n, [[i] for i in numbers], [[0.0]] * n, reward=[float(i) for i in numbers])


def sharded(count: int, each: int) -> ShardedBuffer:
    return ShardedBuffer([ReplayBuffer(each, first_id=i, id_stride=count) for i in range(count)])


def test_rollouts_when_dealt_are_balanced_and_numbered_once() -> None:
    store = sharded(3, 4)
    ids = np.concatenate([store.add(rewards(first, 5), train_step=0) for first in (0, 5)])
    assert sorted(ids) == list(range(10))
    assert [len(shard) for shard in store.shards] == [4, 3, 3]
    held = np.concatenate([shard.columns["reward"] for shard in store.shards])
    assert sorted(held) == list(range(10))
    store.add(rewards(10, 5), train_step=0)
    assert len(store) == 12 and [len(shard) for shard in store.shards] == [4, 4, 4]


def test_draw_when_taken_has_an_equal_part_of_each_shard() -> None:
    store = sharded(3, 4)
    store.add(rewards(0, 12), train_step=0)
    draw = store.sample(6, train_step=2, rng=np.random.default_rng(0))
    assert (draw.rollout_ids % 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert draw.rollouts.reward.tolist() == draw.rollout_ids.tolist()
    assert set(draw.residence) == {2}
    with pytest.raises(DataError, match="3 shards must divide the batch of 7"):
        store.sample(7, train_step=2, rng=np.random.default_rng(0))


def test_state_when_restored_goes_on_dealing_where_it_stopped() -> None:
    one, two = sharded(3, 4), sharded(3, 4)
    one.add(rewards(0, 4), train_step=0)
    two.load_state_arrays(one.state_arrays())
    for store in (one, two):
        store.add(rewards(4, 1), train_step=0)
    assert two.shards[1].columns["reward"].tolist() == one.shards[1].columns["reward"].tolist() == [1.0, 4.0]


def test_add_when_one_shard_refuses_changes_none() -> None:
    store = sharded(2, 4)
    store.add(rewards(0, 3), train_step=0)
    with pytest.raises(DataError, match="5 rollouts at once do not fit in a buffer of capacity 4"):
        store.add(rewards(3, 9), train_step=0)
    with pytest.raises(DataError, match=r"extra columns \{'x': 'float64 \(\)'\} differ from those already held, \{\}"):
        store.add(rewards(3, 1).replace(extras={"x": np.zeros(1)}), train_step=0)
    assert [shard.columns["reward"].tolist() for shard in store.shards] == [[0.0, 2.0], [1.0]]
    assert store.add(rewards(3, 1), train_step=0).tolist() == [3]


def test_draw_when_one_shard_has_too_little_uses_none() -> None:
    store = ShardedBuffer([ReplayBuffer(4, sampler=Oldest(), first_id=i, id_stride=2) for i in range(2)])
    store.add(rewards(0, 3), train_step=0)
    with pytest.raises(DataError, match=r"cannot draw 4: the shards hold \[2, 1\] rollouts"):
        store.sample(4, train_step=0, rng=np.random.default_rng(0))
    assert [shard.columns["uses"].tolist() for shard in store.shards] == [[0, 0], [0]]
    for n in (0, -2):
        assert not store.can_sample(n)
        with pytest.raises(DataError, match=f"cannot draw {n}"):
            store.sample(n, train_step=0, rng=np.random.default_rng(0))


def test_state_when_of_other_shards_is_refused_and_changes_nothing() -> None:
    two, three = sharded(2, 4), sharded(3, 4)
    two.add(rewards(0, 3), train_step=0)
    with pytest.raises(CheckpointError, match="buffer state of 2 shards, expected 3"):
        three.load_state_arrays(two.state_arrays())
    with pytest.raises(CheckpointError, match="buffer state of 0 shards, expected 2"):
        two.load_state_arrays({})
    damaged = two.state_arrays()
    two.add(rewards(3, 1), train_step=0)
    del damaged["1/book.uses"]
    with pytest.raises(CheckpointError, match=r"incomplete: 'book\.uses'"):
        two.load_state_arrays(damaged)
    assert [shard.columns["reward"].tolist() for shard in two.shards] == [[0.0, 2.0], [1.0, 3.0]]
    with pytest.raises(ConfigError, match="at least one shard"):
        ShardedBuffer([])


def test_rollouts_when_removed_by_id_leave_their_own_shard_and_are_counted() -> None:
    store = sharded(3, 8)
    store.add(rewards(0, 20), train_step=0)
    store.sample(3, train_step=0, rng=np.random.default_rng(0))
    assert store.remove(np.array([0, 4, 5, 4, 100, -1])) == 3
    held = [sorted(shard.columns["rollout_id"].tolist()) for shard in store.shards]
    assert held == [[3, 6, 9, 12, 15, 18], [1, 7, 10, 13, 16, 19], [2, 8, 11, 14, 17]]
    assert len(store.departures()) == 3 and store.remove([]) == 0


def test_priorities_when_written_by_id_reach_their_own_shard() -> None:
    store = ShardedBuffer([ReplayBuffer(8, first_id=i, id_stride=2, sampler=Prioritized()) for i in range(2)])
    store.add(rewards(0, 8), train_step=0)
    assert store.update_priorities(np.array([5, 2, 5, 99]), np.array([1.0, 4.0, 3.0, 9.0])) == 3
    assert [shard.columns["priority"].tolist() for shard in store.shards] == [[1, 4, 1, 1], [1, 1, 3, 1]]
    with pytest.raises(DataError, match="priority of rollout id 3 is -1"):
        store.update_priorities([2, 3], [7.0, -1.0])
    assert store.shards[0].columns["priority"].tolist() == [1, 4, 1, 1]


def test_metrics_when_asked_are_of_all_that_the_shards_hold() -> None:
    store = sharded(2, 8)
    assert store.metrics()["correct_fraction"] == 0 == store.metrics()["size"]
    store.add(rewards(0, 7), train_step=0)  # rewards 0, 2, 4, 6 and 1, 3, 5
    store.sample(4, train_step=5, rng=np.random.default_rng(0))
    metrics = store.metrics()
    assert metrics["size"] == 7 and metrics["correct_fraction"] == pytest.approx(6 / 7)
    assert metrics["staleness"] == 5
    assert metrics["bytes"] == sum(shard.nbytes for shard in store.shards)
