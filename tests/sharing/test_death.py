"""Processes that die by SIGKILL: noticed at once, and harmless."""

import multiprocessing
import os

import pytest
from shared_rows import PATIENCE_S, RNG, SIZE, SYNCS, Child, check, numbered, until

from ostinato import paper_fifo
from ostinato.errors import DataError, RunError
from ostinato.sharing import EndOfStream, ProducerDied, SharedProducer, SharedReader, WaitTimeout, shared_directory
from ostinato.sharing.directory import remove_abandoned

BOTH = pytest.mark.parametrize("sync", SYNCS)


@BOTH
def test_producer_when_killed_is_known_dead_and_its_rollouts_stay(rings, sync) -> None:
    child = Child("produce", rings, "gen-0", 5, sync)
    assert child.line() == "20"
    with SharedReader(rings) as reader:
        assert reader.alive("gen-0") and not reader.producers()[0].died
        reader.check_producers()
        child.kill()
        assert not reader.alive("gen-0")
        status = reader.producers()[0]
        assert status.died and (status.pid, status.written, status.held) == (child.process.pid, 20, 20)
        message = rf"'gen-0' \(process {child.process.pid}\) died after 20 rollouts, the last \d+\.\d s ago"
        with pytest.raises(ProducerDied, match=message) as caught:
            reader.sample(21, train_step=0, rng=RNG(0), timeout_s=PATIENCE_S)
        assert (caught.value.producer, caught.value.written) == ("gen-0", 20)
        assert set(check(reader.sample(20, train_step=0, rng=RNG(0)).rollouts)) <= set(range(20))
        buffer = paper_fifo(100)
        assert reader.drain(buffer, train_step=0) == 20
        with pytest.raises(ProducerDied):
            reader.drain(buffer, train_step=0, timeout_s=PATIENCE_S)
        reader.forgive("gen-0")
        reader.check_producers()
        with pytest.raises(WaitTimeout):
            reader.drain(buffer, train_step=0, timeout_s=0.01)


def test_death_when_others_live_is_told_once_and_the_wait_goes_on(rings) -> None:
    child, buffer = Child("produce", rings, "gen-0", 1), paper_fifo(100)
    assert child.line() == "4"
    with SharedProducer(rings, "gen-1", **SIZE) as living, SharedReader(rings) as reader:
        assert reader.drain(buffer, train_step=0, timeout_s=PATIENCE_S) == 4
        child.kill()
        with pytest.raises(ProducerDied, match=r"reader\.forgive\('gen-0'\) goes on without it"):
            reader.drain(buffer, train_step=0, timeout_s=PATIENCE_S)
        for wait in (
            lambda: reader.drain(buffer, train_step=0, timeout_s=0.01),
            lambda: reader.sample(5, train_step=0, rng=RNG(0), timeout_s=0.01),
        ):
            with pytest.raises(WaitTimeout):
                wait()
        for _ in range(2):  # asked for, it is told as long as it is so
            with pytest.raises(ProducerDied):
                reader.check_producers()
        for k in range(20):
            living.add(numbered(100 + k, 1), train_step=0)
            assert reader.drain(buffer, train_step=0, timeout_s=PATIENCE_S) == 1
        living.close()
        for _ in range(2):  # nobody lives: waiting is in vain
            with pytest.raises(ProducerDied, match="'gen-0'"):
                reader.drain(buffer, train_step=0, timeout_s=PATIENCE_S)


def test_death_when_the_producer_came_back_and_dies_again_is_told_again(rings) -> None:
    with SharedProducer(rings, "gen-1", **SIZE), SharedReader(rings) as reader:
        for _ in range(2):
            child = Child("produce", rings, "gen-0", 0)
            assert child.line() == "0"
            child.kill()
            with pytest.raises(ProducerDied, match="'gen-0'"):
                reader.sample(1, train_step=0, rng=RNG(0), timeout_s=PATIENCE_S)
            with pytest.raises(WaitTimeout):
                reader.sample(1, train_step=0, rng=RNG(0), timeout_s=0.01)


@BOTH
def test_producer_when_killed_inside_an_add_leaves_no_half_row_and_comes_back(rings, sync) -> None:
    child = Child("die_inside_add", rings, "gen-0", 20, sync)
    assert child.end() == -9
    reader, buffer = SharedReader(rings), paper_fifo(500)
    assert len(reader) == 60 and not reader.alive("gen-0")  # 64 held, 4 given up for the group that never came
    numbers = check(reader.sample(60, train_step=9, rng=RNG(0)).rollouts)
    assert set(numbers) <= set(range(20, 80))
    assert reader.drain(buffer, train_step=9) == 60
    producer = SharedProducer(rings, "gen-0", **SIZE, sync=sync)
    assert reader.alive("gen-0") and producer.slot == 0 and reader.producers()[0].starts == 2
    for _ in range(40):
        producer.add(numbered(producer.written, 4), train_step=9)
        assert reader.drain(buffer, train_step=9) == 4
    assert buffer.columns["reward"].tolist() == list(range(20, 240))
    assert set(check(reader.sample(64, train_step=9, rng=RNG(0)).rollouts)) <= set(range(176, 240))


def test_producer_when_it_dies_before_its_first_rollout_is_reported(rings) -> None:
    child = Child("produce", rings, "gen-0", 0)
    assert child.line() == "0"
    child.kill()
    with pytest.raises(ProducerDied, match="died before its first"):
        SharedReader(rings).sample(1, train_step=0, rng=RNG(0), timeout_s=PATIENCE_S)


def test_producer_when_closed_has_not_died_and_the_stream_ends(rings) -> None:
    child = Child("produce", rings, "gen-0", 2)
    assert child.line() == "8"
    assert child.end() == 0
    reader = SharedReader(rings)
    assert [(s.alive, s.closed, s.died) for s in reader.producers()] == [(False, True, False)]
    assert len(reader.sample(8, train_step=0, rng=RNG(0))) == 8
    with pytest.raises(EndOfStream, match="waited for 9 rollouts to be held, but all 1 producers have closed"):
        reader.sample(9, train_step=0, rng=RNG(0), timeout_s=PATIENCE_S)


def test_producer_when_another_of_its_name_lives_is_refused(rings) -> None:
    child = Child("produce", rings, "gen-0", 1)
    assert child.line() == "4"
    with pytest.raises(RunError, match=f"'gen-0' lives already, in process {child.process.pid}"):
        SharedProducer(rings, "gen-0", **SIZE)
    child.kill()
    with pytest.raises(DataError, match="holds 64 rollouts, 65536 bytes"):
        SharedProducer(rings, "gen-0", capacity=65, capacity_bytes=1 << 16)
    assert SharedProducer(rings, "gen-0", **SIZE).written == 4


def test_producer_when_its_reader_dies_holding_the_lock_goes_on(rings) -> None:
    producer = SharedProducer(rings, "a", **SIZE, sync="flock")
    producer.add(numbered(0, 4), train_step=0)
    child = Child("hold_reading_lock", rings, 0)
    assert child.line() == "held"
    assert not producer._ring.lock.try_take()
    child.kill()
    producer.add(numbered(4, 4), train_step=0)
    assert producer.written == 8


def sleep_in_fork(producer: SharedProducer, pipe) -> None:
    try:
        producer.add(numbered(0, 1), train_step=0)
    except RunError as error:
        pipe.send(str(error))
    pipe.recv()


def read_in_fork(reader: SharedReader, pipe) -> None:
    pipe.send((reader.alive("a"), check(reader.sample(4, train_step=0, rng=RNG(0)).rollouts)))


@BOTH
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_reader_when_used_in_a_forked_child_reads_as_before(rings, sync) -> None:
    context = multiprocessing.get_context("fork")
    producer, reader = SharedProducer(rings, "a", **SIZE, sync=sync), SharedReader(rings)
    producer.add(numbered(0, 4), train_step=0)
    expected = (reader.alive("a"), check(reader.sample(4, train_step=0, rng=RNG(0)).rollouts))
    ours, theirs = context.Pipe()
    child = context.Process(target=read_in_fork, args=(reader, theirs))
    child.start()
    assert ours.poll(PATIENCE_S)
    assert ours.recv() == expected and expected[0]
    child.join(PATIENCE_S)
    assert reader.alive("a")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_producer_when_it_forked_is_not_kept_alive_by_its_child(rings) -> None:
    context = multiprocessing.get_context("fork")
    producer, reader = SharedProducer(rings, "a", **SIZE), SharedReader(rings)
    ours, theirs = context.Pipe()
    child = context.Process(target=sleep_in_fork, args=(producer, theirs))
    child.start()
    assert (
        ours.poll(PATIENCE_S) and ours.recv() == f"producer 'a' belongs to process {os.getpid()}, this is {child.pid}"
    )
    assert reader.alive("a")
    producer._life.close()  # as the kernel does when the process ends
    assert not reader.alive("a") and reader.producers()[0].died
    ours.send("end")
    child.join(PATIENCE_S)


def test_directory_when_its_owner_was_killed_is_removed_by_the_next(tmp_path) -> None:
    child = Child("own_directory", tmp_path)
    path = tmp_path / child.line()
    remove_abandoned(tmp_path)
    assert path.exists()
    child.kill()
    with shared_directory(tmp_path):
        until(lambda: not path.exists())
