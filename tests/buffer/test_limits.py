"""Limiters: who waits, within which band, and that not everybody does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.limits import BoundedQueue, MinSize, SamplesPerInsert, Traffic
from ostinato.errors import ConfigError
from ostinato.rollouts import Rollouts


def traffic(inserted: int = 0, sampled: int = 0, size: int = 0, capacity: int = 100) -> Traffic:
    return Traffic(inserted=inserted, sampled=sampled, size=size, capacity=capacity)


def test_min_size_when_zero_waits_for_a_batch_else_for_its_number() -> None:
    assert [MinSize().can_sample(4, traffic(size=size)) for size in (3, 4)] == [False, True]
    assert [MinSize(2).can_sample(4, traffic(size=size)) for size in (1, 2)] == [False, True]
    assert MinSize().can_add(10**6, traffic(size=100))


def test_bounded_queue_when_full_makes_inserts_wait_and_when_short_draws() -> None:
    queue = BoundedQueue()
    assert [queue.can_add(2, traffic(size=size, capacity=6)) for size in (4, 5)] == [True, False]
    assert [queue.can_sample(3, traffic(size=size)) for size in (2, 3)] == [False, True]


@pytest.mark.parametrize(("batch", "group", "needed"), [(1, 1, 1), (4, 4, 4), (60, 12, 60), (5, 4, 8), (16, 60, 72)])
def test_bounded_queue_when_both_could_wait_is_refused(batch, group, needed) -> None:
    limiter = BoundedQueue(batch_size=batch, group_size=group)
    limiter.check(needed)
    with pytest.raises(ConfigError, match=f"it needs a capacity of {needed}"):
        limiter.check(needed - 1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.lists(st.booleans(), max_size=60))
def test_bounded_queue_when_accepted_always_lets_one_side_move(batch, group, spare, preferences) -> None:
    limiter, size = BoundedQueue(batch_size=batch, group_size=group), 0
    capacity = next(n for n in range(1, 20) if accepts(limiter, n)) + spare
    for prefers_add in preferences:
        state = traffic(size=size, capacity=capacity)
        add, sample = limiter.can_add(group, state), limiter.can_sample(batch, state)
        assert add or sample
        size += group if add and (prefers_add or not sample) else -batch


def accepts(limiter, capacity: int) -> bool:
    try:
        limiter.check(capacity)
    except ConfigError:
        return False
    return True


def test_samples_per_insert_when_walked_by_hand_keeps_the_band() -> None:
    limiter = SamplesPerInsert(2.0, min_size=3, error_buffer=4.0)
    assert not limiter.can_sample(1, traffic(2, 0, 2))  # filling
    assert limiter.can_add(1, traffic(2, 0, 2))
    # 3 inserted: balance 0. Draws down to -4, inserts up to +4.
    assert [limiter.can_sample(1, traffic(3, sampled, 3)) for sampled in (3, 4)] == [True, False]
    assert [limiter.can_add(1, traffic(inserted, 0, inserted)) for inserted in (4, 5)] == [True, False]
    assert limiter.can_add(2, traffic(5, 4, 5)) and not limiter.can_add(3, traffic(5, 4, 5))
    assert limiter.balance(5, 3) == 1.0


def test_samples_per_insert_when_a_rule_empties_the_buffer_lets_inserts_in() -> None:
    limiter = SamplesPerInsert(1.0, batch_size=8, group_size=4)
    full = traffic(inserted=16, sampled=0, size=16)
    assert not limiter.can_add(4, full) and limiter.can_sample(8, full)
    aged = traffic(inserted=16, sampled=0, size=7)
    assert limiter.can_add(4, aged) and not limiter.can_sample(8, aged)


@pytest.mark.parametrize(("producer", "consumer"), [(10, 1), (1, 10), (1, 1)])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 7.3])
def test_samples_per_insert_when_one_side_is_ten_times_faster_stays_within_the_band(producer, consumer, ratio) -> None:
    limiter = SamplesPerInsert(ratio, min_size=32, batch_size=12, group_size=16, error_buffer=200.0)
    limiter.check(252)
    inserted = sampled = 0
    for _ in range(4000):
        for _ in range(producer):
            if limiter.can_add(16, traffic(inserted, sampled, min(252, inserted), 252)):
                inserted += 16
        for _ in range(consumer):
            if limiter.can_sample(12, traffic(inserted, sampled, min(252, inserted), 252)):
                sampled += 12
        assert abs(limiter.balance(inserted, sampled)) <= max(200.0, 32 * ratio) + 1e-6
    assert sampled > 1000
    assert sampled / (inserted - 32) == pytest.approx(ratio, abs=200.0 / (inserted - 32))


@given(
    ratio=st.floats(0.01, 50, allow_nan=False),
    min_size=st.integers(0, 12),
    batch=st.integers(1, 12),
    group=st.integers(1, 12),
    slack=st.floats(0, 30),
    capacity=st.integers(12, 40),
    start=st.integers(0, 12),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(1, 12), st.integers(0, 3)), max_size=80),
)
def test_samples_per_insert_when_accepted_always_lets_one_side_move(
    ratio, min_size, batch, group, slack, capacity, start, moves
) -> None:
    narrowest = SamplesPerInsert(ratio, batch_size=batch, group_size=group).narrowest
    limiter = SamplesPerInsert(ratio, min_size, narrowest + slack, batch_size=batch, group_size=group)
    limiter.check(capacity)
    inserted, sampled, size = limiter.origin(start), 0, start
    for prefers_add, n_add, n_sample, expired in moves:
        n_add, n_sample = min(n_add, group), min(n_sample, batch)
        state = traffic(inserted, sampled, size, capacity)
        add, sample = limiter.can_add(n_add, state), limiter.can_sample(n_sample, state)
        assert add or sample
        if add and (prefers_add or not sample):
            inserted, size = inserted + n_add, min(capacity, size + n_add)
        else:
            sampled += n_sample
        size = max(0, size - expired)


def test_samples_per_insert_when_resumed_with_another_ratio_owes_nothing() -> None:
    before, after = SamplesPerInsert(1.0, min_size=10), SamplesPerInsert(8.0, min_size=10)
    assert after.balance(1000, 990) == 6930.0  # what the old counters would claim: 6930 draws before the next insert
    inserted = after.origin(size=500)
    assert after.balance(inserted, 0) == 0.0
    assert after.can_sample(1, traffic(inserted, 0, 500, 500)) and after.can_add(1, traffic(inserted, 0, 500, 500))
    assert before.origin(0) == 0 and before.origin(4) == 4 and MinSize(3).origin(9) == BoundedQueue().origin(9) == 0


def test_samples_per_insert_when_no_band_is_given_takes_the_narrowest() -> None:
    limiter = SamplesPerInsert(5.0, batch_size=60, group_size=16)
    assert limiter.narrowest == limiter.band == 80.0 and limiter.floor == 60
    assert SamplesPerInsert(0.5).band == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinSize(-1), "min_size must be at least 0, got -1"),
        (lambda: MinSize(5).check(4), "min_size 5 is never reached at a capacity of 4"),
        (lambda: BoundedQueue(batch_size=0), "batch_size must be at least 1, got 0"),
        (lambda: SamplesPerInsert(0.0), "samples per insert must be above 0, got 0.0"),
        (lambda: SamplesPerInsert(-2.0), "samples per insert must be above 0, got -2.0"),
        (lambda: SamplesPerInsert(float("nan")), "samples per insert must be a finite number, got nan"),
        (lambda: SamplesPerInsert(4.0, 10, 3.9), "must be at least 4.0"),
        (lambda: SamplesPerInsert(0.5, 10, 0.9), "must be at least 1.0"),
        (lambda: SamplesPerInsert(2.0, error_buffer=59.0, batch_size=60), "batches of 60 and groups of 1 .* least 60"),
        (lambda: SamplesPerInsert(2.0, error_buffer=31.0, group_size=16), "batches of 1 and groups of 16 .* least 32"),
        (lambda: SamplesPerInsert(2.0, error_buffer=float("inf")), "error_buffer must be a finite number, got inf"),
        (lambda: SamplesPerInsert(1.0, 20).check(19), "need 20 rollouts, the capacity is 19"),
        (lambda: SamplesPerInsert(1.0, batch_size=20).check(19), "need 20 rollouts, the capacity is 19"),
        (lambda: SamplesPerInsert(1.0, group_size=20).check(19), "a group of 20 does not fit in a capacity of 19"),
    ],
)
def test_limiters_when_impossible_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("adds_first", [True, False])
def test_samples_per_insert_when_in_a_buffer_counts_until_another_ratio_begins_anew(adds_first) -> None:
    limiter = SamplesPerInsert(2.0, 8, batch_size=4, group_size=4)
    buffer = ReplayBuffer(50, limiter=limiter)
    group = Rollouts.from_completions([[1]] * 4, [[2]] * 4, [[-0.5]] * 4)
    inserted = sampled = 0
    for step in range(200):
        for side in (adds_first, not adds_first):
            if side and buffer.can_add(4):
                buffer.add(group, train_step=step)
                inserted += 4
            elif not side and buffer.can_sample(4):
                buffer.sample(4, train_step=step, rng=np.random.default_rng(step))
                sampled += 4
        assert abs(limiter.balance(inserted, sampled)) <= max(limiter.band, 2.0 * 8)
    assert sampled > 300
    same, other = ReplayBuffer(50, limiter=limiter), ReplayBuffer(50, limiter=SamplesPerInsert(40.0, 8))
    for resumed in (same, other):
        resumed.load_state_arrays(buffer.state_arrays())
    assert [same.can_add(4), same.can_sample(4)] == [buffer.can_add(4), buffer.can_sample(4)]
    assert other.can_add(1) and other.can_sample(1)
    draws = 0
    while other.can_sample(1):
        other.sample(1, train_step=200, rng=np.random.default_rng(draws))
        draws += 1
    assert draws == 40  # one band of 40, whatever was inserted before
    other.clear()
    assert other.can_add(1) and not other.can_sample(1)
