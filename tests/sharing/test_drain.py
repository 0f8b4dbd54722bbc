"""Draining: each rollout enters a buffer once and in order, or is counted as lost, or its producer waits."""

import threading

import numpy as np
import pytest
from shared_rows import PATIENCE_S, RNG, SIZE, SYNCS, Child, check, numbered, until

from ostinato import ReplayBuffer, no_buffer, paper_fifo
from ostinato.errors import DataError, RunError
from ostinato.sharing import EndOfStream, LockedBuffer, SharedProducer, SharedReader, WaitTimeout, draining


def contents(buffer: ReplayBuffer) -> list[float]:
    return buffer.columns["reward"].tolist()


@pytest.mark.parametrize("sync", SYNCS)
def test_drain_when_called_again_moves_what_is_new_once_and_in_order(rings, sync) -> None:
    producer, reader = SharedProducer(rings, "a", **SIZE, sync=sync), SharedReader(rings)
    buffer = paper_fifo(200, min_size=1)
    assert reader.drain(buffer, train_step=1) == 0
    producer.add(numbered(0, 30), train_step=0)
    assert reader.drain(buffer, train_step=1) == 30
    assert reader.drain(buffer, train_step=2) == 0
    producer.add(numbered(30, 2), train_step=1)
    producer.add(numbered(32, 20), train_step=2)
    assert reader.drain(buffer, train_step=3) == 22
    assert contents(buffer) == list(range(52))
    assert buffer.columns["insert_step"].tolist() == [1] * 30 + [3] * 22
    check(buffer.sample(100, train_step=3, rng=RNG(0)).rollouts)


def test_drain_when_rows_were_overwritten_counts_them_as_lost(rings) -> None:
    producer, reader, buffer = SharedProducer(rings, "a", **SIZE), SharedReader(rings), paper_fifo(500)
    for k in range(50):
        producer.add(numbered(4 * k, 4), train_step=0)
    assert reader.metrics()["pending"] == 64
    assert reader.drain(buffer, train_step=0) == 64
    assert reader.lost == {"a": 136} and contents(buffer) == list(range(136, 200))
    assert reader.metrics()["pending"] == 0


def test_drain_when_rows_are_overwritten_while_it_copies_keeps_the_whole_ones(rings) -> None:
    producer, reader, buffer = SharedProducer(rings, "a", **SIZE), SharedReader(rings), paper_fifo(500)
    producer.add(numbered(0, 32), train_step=0)
    producer.add(numbered(32, 32), train_step=0)
    len(reader)
    copy, calls = reader._kernels.copy, []

    def copy_then_overwrite(*arguments) -> None:
        copy(*arguments)
        calls.append(1)
        if len(calls) == 1:
            producer.add(numbered(64, 10), train_step=0)

    reader._kernels.copy = copy_then_overwrite
    assert reader.drain(buffer, train_step=0) == 54
    assert reader.drain(buffer, train_step=0) == 10
    assert reader.lost == {"a": 10} and contents(buffer) == list(range(10, 74))


def test_reader_when_it_comes_late_begins_at_what_is_held(rings) -> None:
    producer = SharedProducer(rings, "a", **SIZE)
    for k in range(50):
        producer.add(numbered(4 * k, 4), train_step=0)
    reader, other = SharedReader(rings), SharedReader(rings, name="other")
    for each in (reader, other):
        buffer = paper_fifo(500)
        assert each.drain(buffer, train_step=0) == 64
        assert each.lost == {"a": 0} and contents(buffer) == list(range(136, 200))


def test_drain_when_there_are_several_producers_keeps_the_order_of_each(rings) -> None:
    reader, buffer = SharedReader(rings), paper_fifo(500)
    producers = [SharedProducer(rings, name, **SIZE) for name in "abc"]
    rng = RNG(5)
    for step in range(40):
        which = int(rng.integers(3))
        producers[which].add(
            numbered(1000 * which + producers[which].written, int(rng.integers(1, 7))).replace(), train_step=step
        )
        if step % 5 == 4:
            reader.drain(buffer, train_step=step)
    held = np.array(contents(buffer))
    for which, producer in enumerate(producers):
        assert held[held // 1000 == which].tolist() == [1000 * which + i for i in range(producer.written)]


def test_drain_when_the_queue_is_full_leaves_whole_adds_in_the_ring(rings) -> None:
    producer, reader, queue = SharedProducer(rings, "a", **SIZE), SharedReader(rings), no_buffer(10, order="oldest")
    for k in range(6):
        producer.add(numbered(4 * k, 4), train_step=0)
    assert reader.drain(queue, train_step=0) == 8 and contents(queue) == list(range(8))
    assert reader.drain(queue, train_step=0) == 0
    queue.sample(5, train_step=0, rng=RNG(0))
    assert reader.drain(queue, train_step=0) == 4 and contents(queue) == list(range(5, 12))
    assert reader.metrics()["pending"] == 12


def test_drain_when_limited_moves_whole_adds(rings) -> None:
    producer, reader, buffer = SharedProducer(rings, "a", **SIZE), SharedReader(rings), paper_fifo(100)
    for k in range(6):
        producer.add(numbered(5 * k, 5), train_step=0)
    assert [reader.drain(buffer, train_step=0, limit=limit) for limit in (12, 1, 0, 100)] == [10 + 5, 5, 0, 10]
    assert contents(buffer) == list(range(30))


def test_drain_when_the_buffer_refuses_a_chunk_loses_nothing(rings) -> None:
    producer, reader = SharedProducer(rings, "a", **SIZE), SharedReader(rings)
    producer.add(numbered(0, 20), train_step=0)
    other = paper_fifo(100)
    other.add(numbered(0, 1).replace(extras={}), train_step=0)
    with pytest.raises(DataError, match="extra columns"):
        reader.drain(other, train_step=0)
    buffer = paper_fifo(100)
    assert reader.drain(buffer, train_step=0) == 20 and contents(buffer) == list(range(20))
    for small in (paper_fifo(10), no_buffer(10)):
        with pytest.raises(DataError, match="20 rollouts"):
            SharedReader(rings).drain(small, train_step=0)


def test_drain_when_one_add_is_not_due_yet_moves_what_came_before_it_and_the_other_rings(rings) -> None:
    first, second = (SharedProducer(rings, name, **SIZE) for name in "ab")
    later = np.full(2, 9)
    first.add(numbered(0, 3), train_step=0)
    first.add(numbered(3, 2).replace(policy_version_min=later, policy_version_max=later), train_step=9)
    second.add(numbered(100, 2), train_step=0)
    reader, buffer = SharedReader(rings), paper_fifo(100)
    for _ in range(3):
        with pytest.raises(DataError, match="9 at train step 5"):
            reader.drain(buffer, train_step=5)
    assert sorted(contents(buffer)) == [0, 1, 2, 100, 101]
    assert reader.drain(buffer, train_step=9) == 2 and reader.lost == {"a": 0, "b": 0}


def test_producer_when_two_threads_add_keeps_every_group_whole(rings) -> None:
    producer = SharedProducer(rings, "a", capacity=4000, capacity_bytes=1 << 22)

    def produce(k: int) -> None:
        for i in range(99):
            producer.add(numbered(1000 * k + 4 * i, 4), train_step=0)

    threads = [threading.Thread(target=produce, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader, buffer = SharedReader(rings), paper_fifo(4000)
    assert reader.drain(buffer, train_step=0) == 4 * 99 * 4
    held = np.array(contents(buffer)).reshape(-1, 4)
    assert (np.diff(held, axis=1) == 1).all()
    for k in range(4):
        assert held[held // 1000 == k].tolist() == [1000 * k + i for i in range(99 * 4)]
    check(buffer.sample(500, train_step=0, rng=RNG(0)).rollouts)


def test_producer_when_told_to_wait_loses_nothing(rings) -> None:
    producer = SharedProducer(rings, "a", **SIZE, wait_for_readers_s=PATIENCE_S)
    buffer = LockedBuffer(paper_fifo(2000, min_size=1))
    with SharedReader(rings, reserve_unread=True) as reader:

        def produce() -> None:
            for _ in range(200):
                producer.add(numbered(producer.written, 5), train_step=0)
            producer.close()

        thread = threading.Thread(target=produce)
        thread.start()
        while len(buffer) < 1000:
            assert reader.drain(buffer, train_step=0, timeout_s=PATIENCE_S) > 0
        thread.join()
        with pytest.raises(EndOfStream, match="all 1 producers have closed"):
            reader.drain(buffer, train_step=0, timeout_s=PATIENCE_S)
        assert reader.lost == {"a": 0}
    with buffer.exclusively() as inner:
        assert contents(inner) == list(range(1000))


def test_producer_when_its_reader_does_not_drain_says_who_and_changes_nothing(rings) -> None:
    producer = SharedProducer(rings, "a", **SIZE, wait_for_readers_s=0.05)
    with SharedReader(rings, name="slow", reserve_unread=True) as reader:
        SharedReader(rings, name="only draws")
        producer.add(numbered(0, 60), train_step=0)
        message = "'a' waited 0.05 s for reader 'slow' to drain rows 0 to 0"
        with pytest.raises(WaitTimeout, match=message):
            producer.add(numbered(60, 5), train_step=0)
        assert producer.written == len(reader) == 60
        buffer = paper_fifo(100)
        assert reader.drain(buffer, train_step=0) == 60
        producer.add(numbered(60, 5), train_step=0)
        producer.add(numbered(65, 55), train_step=0)
        with pytest.raises(WaitTimeout, match="drain rows 60 to 60"):
            producer.add(numbered(120, 5), train_step=0)
    producer.add(numbered(120, 60), train_step=0)  # the reader closed: nobody to wait for
    assert producer.written == 180


def test_readers_when_two_living_ones_share_a_name_are_refused(rings) -> None:
    with SharedReader(rings, name="x", reserve_unread=True), pytest.raises(RunError, match="'x' lives already"):
        SharedReader(rings, name="x", reserve_unread=True)
    SharedReader(rings, name="x", reserve_unread=True).close()


def test_producer_when_the_reader_it_waits_for_is_killed_goes_on(rings) -> None:
    producer = SharedProducer(rings, "a", **SIZE, wait_for_readers_s=PATIENCE_S)
    child = Child("reserve_unread", rings, "trainer")
    assert child.line() == "reading"
    producer.add(numbered(0, 64), train_step=0)
    adding = threading.Thread(target=lambda: producer.add(numbered(64, 4), train_step=0))
    adding.start()
    adding.join(0.2)
    assert adding.is_alive() and producer.written == 64
    child.kill()
    until(lambda: producer.written == 68)
    adding.join()


def test_drain_when_all_it_copies_is_overwritten_meanwhile_goes_on_with_the_next(rings) -> None:
    producer, reader, buffer = SharedProducer(rings, "a", **SIZE), SharedReader(rings), paper_fifo(500)
    producer.add(numbered(0, 8), train_step=0)
    len(reader)
    copy, calls = reader._kernels.copy, []

    def copy_then_overwrite(*arguments) -> None:
        copy(*arguments)
        calls.append(1)
        if len(calls) == 1:
            producer.add(numbered(8, 64), train_step=0)

    reader._kernels.copy = copy_then_overwrite
    assert reader.drain(buffer, train_step=0) == 0
    assert reader.drain(buffer, train_step=0) == 64
    assert reader.lost == {"a": 8} and contents(buffer) == list(range(8, 72))


def test_drain_when_one_add_is_larger_than_a_chunk_moves_it_whole(rings, monkeypatch) -> None:
    monkeypatch.setattr(draining, "CHUNK", 10)
    producer, reader, buffer = SharedProducer(rings, "a", **SIZE), SharedReader(rings), paper_fifo(100)
    for n in (4, 25, 9, 3):
        producer.add(numbered(producer.written, n).replace(group_id=np.full(n, n)), train_step=0)
    assert reader.drain(buffer, train_step=0) == 41
    assert contents(buffer) == list(range(41))
    assert buffer.columns["group_rows"].tolist() == [4] * 4 + [25] * 25 + [9] * 9 + [3] * 3
