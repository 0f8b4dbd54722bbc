"""Rings: what goes in comes out, by numbers, torn by nobody."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared_rows import PATIENCE_S, RNG, SIZE, SYNCS, check, numbered, plain, seen

from ostinato.buffer.workspace import Workspace
from ostinato.errors import DataError, RunError
from ostinato.sharing import SharedProducer, SharedReader, WaitTimeout, ring, shared_directory
from ostinato.sharing.directory import MAX_RINGS


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("sync", SYNCS)
def test_rows_when_read_by_either_kernel_and_either_lock_are_those_added(rings, kernels, sync) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    with SharedProducer(rings, "a", **SIZE, sync=sync) as producer, SharedReader(rings, kernels=kernels) as reader:
        for first in range(0, 120, 6):
            producer.add(numbered(first, 6), train_step=first)
        assert seen(reader) == set(range(120 - 64, 120))


@given(groups=st.lists(st.integers(0, 9), min_size=1, max_size=30), capacity=st.integers(9, 40))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ring_when_groups_of_any_size_come_holds_the_newest(tmp_path, groups, capacity) -> None:
    with shared_directory(tmp_path) as rings:
        producer, reader = SharedProducer(rings, "a", capacity=capacity, capacity_bytes=1 << 16), SharedReader(rings)
        for n in groups:
            first = producer.written
            ids = producer.add(numbered(first, n), train_step=0)
            assert ids.tolist() == [i * MAX_RINGS for i in range(first, first + n)]
        total = sum(groups)
        assert len(reader) == min(capacity, total)
        if total:
            assert seen(reader) == set(range(max(0, total - capacity), total))


def test_ring_when_its_bytes_run_out_gives_up_whole_groups(rings) -> None:
    producer, reader = SharedProducer(rings, "a", capacity=100, capacity_bytes=1000), SharedReader(rings)
    for _ in range(7):  # 4 rollouts of 8 tokens: 128 + 64 + 128 bytes with every span at a multiple of 64
        producer.add(plain(4), train_step=0)
    assert len(reader) == 4 * 3
    producer.add(plain(1, length=70), train_step=0)  # fits behind none of them, and begins at byte 0
    assert len(reader) == 1
    assert reader.sample(1, train_step=0, rng=RNG(0)).rollouts.tokens.tolist() == [1] + [2] * 69


def test_group_when_larger_than_the_ring_is_refused_with_both_sizes(rings) -> None:
    producer, reader = SharedProducer(rings, "a", capacity=4, capacity_bytes=1024), SharedReader(rings)
    with pytest.raises(DataError, match="5 rollouts of 448 bytes do not fit in a ring of 4 rollouts and 1024 bytes"):
        producer.add(plain(5), train_step=0)
    with pytest.raises(DataError, match="1 rollouts of 1728 bytes do not fit in a ring of 4 rollouts and 1024 bytes"):
        producer.add(plain(1, length=192), train_step=0)
    assert producer.add(numbered(0, 1), train_step=0).tolist() == [0]  # the layout was still free
    with pytest.raises(DataError, match="extra columns"):
        producer.add(plain(1), train_step=0)
    assert len(reader) == 1 and seen(reader) == {0}


def test_draws_when_made_from_two_producers_have_unique_ids_and_books(rings) -> None:
    a, b = (SharedProducer(rings, name, **SIZE) for name in "ab")
    assert a.add(numbered(0, 3), train_step=2).tolist() == [0, MAX_RINGS, 2 * MAX_RINGS]
    assert b.add(numbered(3, 2), train_step=3).tolist() == [1, MAX_RINGS + 1]
    number = {0: 0, MAX_RINGS: 1, 2 * MAX_RINGS: 2, 1: 3, MAX_RINGS + 1: 4}
    reader, other, memory = SharedReader(rings, min_size=1), SharedReader(rings), Workspace()
    used: dict[int, list[int]] = {}
    for step in (5, 9):
        draw = reader.sample(40, train_step=step, rng=RNG(step), out=memory)
        assert check(draw.rollouts) == [number[i] for i in draw.rollout_ids.tolist()]
        assert set(draw.importance_weights) == {1.0} and set(draw.staleness) == {step}
        for row, i in enumerate(draw.rollout_ids.tolist()):
            assert draw.residence[row] == step - (2 if number[i] < 3 else 3)
            assert draw.uses[row] == len(used.get(i, []))
            assert draw.steps_since_last_use[row] == (step - used[i][-1] if i in used else -1)
            used.setdefault(i, []).append(step)
    assert set(other.sample(5, train_step=9, rng=RNG(0)).uses) <= {0, 1, 2, 3, 4}
    assert other.sample(1, train_step=9, rng=RNG(0)).uses[0] <= 5  # its own book, not that of `reader`


def test_uses_when_a_row_was_overwritten_begin_anew(rings) -> None:
    producer, reader = SharedProducer(rings, "a", capacity=1, capacity_bytes=4096), SharedReader(rings)
    for number, uses in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)):
        if number == producer.written:
            producer.add(numbered(number, 1), train_step=0)
        draw = reader.sample(1, train_step=4, rng=RNG(0))
        assert (draw.uses.tolist(), draw.steps_since_last_use.tolist()) == ([uses], [0 if uses else -1])


def test_draws_when_counted_over_rings_of_unlike_size_pass_chi_square(rings) -> None:
    from scipy.stats import chisquare

    for name, n in (("a", 1), ("b", 7), ("c", 24)):
        SharedProducer(rings, name, capacity=7, capacity_bytes=1 << 16).add(numbered(0, min(n, 7)), train_step=0)
    with SharedReader(rings, min_size=1) as reader:
        drawn = reader.sample(6000, train_step=0, rng=RNG(3)).rollout_ids
    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == 15 and chisquare(counts).pvalue > 1e-3


def test_reader_when_rows_are_overwritten_while_it_copies_draws_others(rings) -> None:
    producer, reader = SharedProducer(rings, "a", **SIZE), SharedReader(rings, kernels="numpy")
    producer.add(numbered(0, 64), train_step=0)
    reader.sample(1, train_step=0, rng=RNG(0))
    copy, calls = reader._kernels.copy, []

    def copy_then_overwrite(*arguments) -> None:
        copy(*arguments)
        calls.append(1)
        if len(calls) < 30:
            producer.add(numbered(producer.written, 16), train_step=0)

    reader._kernels.copy = copy_then_overwrite
    numbers = check(reader.sample(50, train_step=0, rng=RNG(1)).rollouts)
    assert min(numbers) > 64 and len(numbers) == 50
    assert reader.metrics()["torn_rows_redrawn"] > 0 and reader.metrics()["batches_redrawn"] > 0


def test_reader_when_overwritten_for_ever_says_so(rings) -> None:
    producer, reader = SharedProducer(rings, "a", capacity=4, capacity_bytes=4096), SharedReader(rings, min_size=1)
    producer.add(plain(4), train_step=0)
    reader.sample(1, train_step=0, rng=RNG(0))
    copy = reader._kernels.copy

    def copy_then_overwrite(*arguments) -> None:
        copy(*arguments)
        producer.add(plain(4), train_step=0)

    reader._kernels.copy = copy_then_overwrite
    with pytest.raises(RunError, match="overwrite their rows faster than 3 can be copied"):
        reader.sample(3, train_step=0, rng=RNG(0))


def test_draw_when_too_little_is_held_waits_and_gives_up(rings) -> None:
    reader = SharedReader(rings, min_size=6)
    with pytest.raises(WaitTimeout, match=r"waited 0.02 s for 6 rollouts to be held; 0 are held, of 0 producers"):
        reader.sample(2, train_step=0, rng=RNG(0), timeout_s=0.02)
    producer = SharedProducer(rings, "a", **SIZE)
    producer.add(numbered(0, 5), train_step=0)
    assert not reader.can_sample(2)
    producer.add(numbered(5, 1), train_step=0)
    assert reader.can_sample(2) and len(reader.sample(2, train_step=0, rng=RNG(0))) == 2
    with pytest.raises(DataError, match="cannot draw 0"):
        reader.sample(0, train_step=0, rng=RNG(0))


def test_uses_when_another_ring_appears_are_kept(rings) -> None:
    kept = SharedProducer(rings, "b", **SIZE)
    kept.add(numbered(0, 2), train_step=0)
    reader = SharedReader(rings, min_size=1)
    reader.sample(50, train_step=1, rng=RNG(0))
    SharedProducer(rings, "c", **SIZE).add(numbered(2, 2), train_step=0)
    draw = reader.sample(50, train_step=3, rng=RNG(1))
    old = draw.rollouts.reward < 2
    assert draw.uses[old].min() >= 10 and draw.uses[~old].min() == 0
    assert set(draw.steps_since_last_use[old]) == {0, 2} and set(draw.steps_since_last_use[~old]) == {-1, 0}


def test_draw_when_an_add_is_replacing_all_that_is_held_waits_for_it(rings) -> None:
    producer, reader = SharedProducer(rings, "a", capacity=4, capacity_bytes=4096), SharedReader(rings, min_size=1)
    producer.add(plain(4), train_step=0)
    counters = producer._ring.counters
    counters[ring.TAIL] = 4  # as in the middle of an add
    with pytest.raises(WaitTimeout, match="0 are held"):
        reader.sample(2, train_step=0, rng=RNG(0))
    pick, calls = reader._picker._pick, []

    def empty_at_first(*arguments):
        calls.append(1)
        counters[ring.TAIL] = 4 if len(calls) == 1 else 0
        try:
            return pick(*arguments)
        finally:
            if len(calls) == 1:
                threading.Timer(0.05, counters.__setitem__, (ring.TAIL, 0)).start()

    counters[ring.TAIL] = 0
    reader._picker._pick = empty_at_first
    assert len(reader.sample(2, train_step=0, rng=RNG(0), timeout_s=PATIENCE_S)) == 2 and len(calls) == 2


def test_writer_when_it_overwrites_gives_up_the_old_rows_before_and_shows_the_new_ones_after(rings) -> None:
    producer, reader = SharedProducer(rings, "a", **SIZE), SharedReader(rings)
    producer.add(numbered(0, 64), train_step=0)
    writer, seen_bounds = producer._writer, []

    def looking(step: Callable[..., None]) -> Callable[..., None]:
        def looked(*arguments) -> None:
            seen_bounds.append(reader._look().rings[0].bounds())
            step(*arguments)
            seen_bounds.append(reader._look().rings[0].bounds())

        return looked

    writer._copy, writer._put_records = looking(writer._copy), looking(writer._put_records)
    producer.add(numbered(64, 10), train_step=0)
    assert seen_bounds == [(10, 64)] * 4
    assert reader._look().rings[0].bounds() == (10, 74)
