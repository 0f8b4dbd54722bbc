"""The face for threads: who waits, in which order, and what is left when it closes."""

import threading
import time
from collections import Counter

import numpy as np
import pytest
from shared_rows import PATIENCE_S, RNG, check, numbered, until

from ostinato import ReplayBuffer, no_buffer, paper_fifo
from ostinato.buffer import BoundedQueue, JournaledBuffer, MaxStaleness, MaxUses, MinSize, Newest, Oldest, PromptsLeft
from ostinato.buffer.sampling.strategies import random_k
from ostinato.errors import DataError
from ostinato.sharing import BufferClosed, CircularWait, EndOfStream, LockedBuffer, WaitTimeout


def queue(capacity: int, order: str = "oldest") -> LockedBuffer:
    return LockedBuffer(no_buffer(capacity, order=order))


def rewards(draw) -> list[float]:
    return draw.rollouts.reward.tolist()


def in_thread(results: list, work, *arguments, **keywords) -> threading.Thread:
    def run() -> None:
        try:
            results.append(work(*arguments, **keywords))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_locked_buffer_when_used_by_many_threads_loses_and_doubles_nothing() -> None:
    buffer, drawn = queue(40), []

    def produce(k: int) -> None:
        for group in range(25):
            buffer.add(numbered(1000 * k + 4 * group, 4), train_step=group, timeout_s=PATIENCE_S)

    def consume() -> None:
        for draw in buffer.batches(6, train_step=0, rng=RNG(0)):
            drawn.extend(check(draw.rollouts))

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    producers = [threading.Thread(target=produce, args=(k,)) for k in range(4)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join()
    buffer.close()
    for thread in consumers:
        thread.join()
    assert Counter(drawn) == Counter(1000 * k + i for k in range(4) for i in range(100))
    assert len(buffer) == 0


def test_close_when_three_are_left_and_the_batch_is_four_gives_the_three_then_the_end() -> None:
    buffer = queue(20)
    buffer.add(numbered(0, 7), train_step=0)
    buffer.close()
    batches = [rewards(draw) for draw in buffer.batches(4, train_step=1, rng=RNG(0))]
    assert batches == [[0, 1, 2, 3], [4, 5, 6]]
    with pytest.raises(EndOfStream, match="0 rollouts are kept"):
        buffer.sample(4, train_step=1, rng=RNG(0))


def test_close_when_a_draw_waits_gives_it_what_is_left() -> None:
    buffer, results = queue(20), []
    buffer.add(numbered(0, 3), train_step=0)
    thread = in_thread(results, buffer.sample, 4, train_step=1, rng=RNG(0))
    until(lambda: len(buffer._crossing.drawing.turns) == 1)
    buffer.close()
    thread.join()
    assert rewards(results[0]) == [0, 1, 2]


def test_close_when_the_buffer_replays_gives_each_never_drawn_rollout_once_and_keeps_all() -> None:
    inner = paper_fifo(50, min_size=30)
    buffer = LockedBuffer(inner)
    buffer.add(numbered(0, 30), train_step=0)
    drawn = {int(i) for i in rewards(buffer.sample(20, train_step=0, rng=RNG(0)))}
    buffer.close()
    rest = [rewards(draw) for draw in buffer.batches(8, train_step=1, rng=RNG(0))]
    fresh = sorted(set(range(30)) - drawn)
    assert [i for batch in rest for i in batch] == fresh
    assert [len(batch) for batch in rest[:-1]] == [8] * (len(rest) - 1)
    assert len(buffer) == 30 and inner.limiter == MinSize(30)


def test_close_when_nothing_shall_be_handed_out_keeps_it_for_saving() -> None:
    buffer = queue(20, order="newest")
    buffer.add(numbered(0, 3), train_step=0)
    buffer.close(hand_out_rest=False)
    with pytest.raises(EndOfStream, match="3 rollouts are kept"):
        buffer.sample(1, train_step=0, rng=RNG(0))
    again = no_buffer(20)
    again.load_state_arrays(buffer.state_arrays())
    assert again.columns["reward"].tolist() == [0, 1, 2]


def test_close_when_newest_go_first_keeps_to_that() -> None:
    inner = ReplayBuffer(20, sampler=Newest(), retention=[MaxUses(1)], limiter=BoundedQueue())
    buffer = LockedBuffer(inner)
    buffer.add(numbered(0, 5), train_step=0)
    buffer.close()
    assert [rewards(draw) for draw in buffer.batches(3, train_step=0, rng=RNG(0))] == [[4, 3, 2], [1, 0]]


def test_close_when_an_add_waits_refuses_it() -> None:
    buffer, results = queue(10), []
    buffer.add(numbered(0, 10), train_step=0)
    thread = in_thread(results, buffer.add, numbered(10, 4), train_step=0)
    until(lambda: len(buffer._crossing.adding.turns) == 1)
    buffer.close()
    thread.join()
    assert isinstance(results[0], BufferClosed) and "4 rollouts were refused" in str(results[0])
    with pytest.raises(BufferClosed):
        buffer.add(numbered(10, 1), train_step=0)
    assert not buffer.can_add(1) and buffer.closed and len(buffer) == 10


def test_waits_when_they_run_out_say_who_waited_and_take_nothing() -> None:
    buffer = queue(10)
    with pytest.raises(WaitTimeout, match=r"a draw of 2 waited 0\.01 s"):
        buffer.sample(2, train_step=0, rng=RNG(0), timeout_s=0.01)
    buffer.add(numbered(0, 10), train_step=0)
    with pytest.raises(WaitTimeout, match="an add of 1 waited 0 s"):
        buffer.add(numbered(10, 1), train_step=0, timeout_s=0)
    assert len(buffer) == 10 and not buffer.can_add(1) and buffer.can_sample(10)
    assert rewards(buffer.sample(10, train_step=0, rng=RNG(0))) == list(range(10))


def test_adders_when_they_wait_go_in_the_order_in_which_they_came() -> None:
    buffer, results, threads = queue(10), [], []
    buffer.add(numbered(0, 10), train_step=0)
    for k, n in enumerate((6, 1, 2)):  # the large one came first, and the small ones do not overtake it
        threads.append(in_thread(results, buffer.add, numbered(100 * (k + 1), n), train_step=0))
        until(lambda k=k: len(buffer._crossing.adding.turns) == k + 1)
    buffer.sample(3, train_step=0, rng=RNG(0))
    time.sleep(0.05)
    assert len(buffer) == 7
    buffer.sample(6, train_step=0, rng=RNG(0))
    for thread in threads:
        thread.join()
    with buffer.exclusively() as inner:
        assert inner.columns["reward"].tolist() == [9, 100, 101, 102, 103, 104, 105, 200, 300, 301]


def test_adder_and_drawer_when_each_waits_for_the_other_are_told() -> None:
    buffer, results = queue(10), []
    buffer.add(numbered(0, 8), train_step=0)
    thread = in_thread(results, buffer.add, numbered(8, 4), train_step=0)
    until(lambda: len(buffer._crossing.adding.turns) == 1)
    with pytest.raises(CircularWait, match="a draw of 9 waits for an add of 4, which waits for it"):
        buffer.sample(9, train_step=0, rng=RNG(0))
    assert rewards(buffer.sample(2, train_step=0, rng=RNG(0))) == [0, 1]
    thread.join()
    assert results[0].tolist() == [8, 9, 10, 11]


def test_consumer_when_the_producer_is_blocked_on_a_full_queue_lets_it_in() -> None:
    buffer, results = queue(8), []
    buffer.add(numbered(0, 8), train_step=0)
    thread = in_thread(results, buffer.add, numbered(8, 8), train_step=0)
    until(lambda: len(buffer._crossing.adding.turns) == 1)
    assert rewards(buffer.sample(8, train_step=0, rng=RNG(0))) == list(range(8))
    thread.join()
    assert rewards(buffer.sample(8, train_step=0, rng=RNG(0), timeout_s=PATIENCE_S)) == list(range(8, 16))


def test_impossible_calls_when_made_fail_at_once_and_let_the_next_in() -> None:
    buffer = queue(10)
    with pytest.raises(DataError):
        buffer.sample(11, train_step=0, rng=RNG(0))
    with pytest.raises(DataError):
        buffer.sample(0, train_step=0, rng=RNG(0))
    with pytest.raises(DataError):
        buffer.add(numbered(0, 11), train_step=0)
    buffer.add(numbered(0, 2), train_step=0)
    assert len(buffer) == 2


def test_train_steps_when_threads_are_behind_count_as_the_newest_seen() -> None:
    buffer = LockedBuffer(paper_fifo(10, min_size=1))
    buffer.add(numbered(0, 2), train_step=7)
    buffer.add(numbered(2, 2), train_step=5)
    buffer.retain(train_step=3)
    draw = buffer.sample(20, train_step=6, rng=RNG(0))
    assert set(draw.residence) == {0} and set(draw.staleness) == {7}
    with buffer.exclusively() as inner:
        assert inner.columns["insert_step"].tolist() == [7] * 4
        assert inner.update_priorities(draw.rollout_ids[:1], np.array([2.0])) == 1
    assert buffer.departures().tolist() == []


def test_padded_draw_when_it_must_wait_waits_and_is_that_of_the_buffer() -> None:
    buffer, results = queue(20), []
    with pytest.raises(WaitTimeout, match=r"a draw of 2 waited 0\.01 s"):
        buffer.sample_padded(2, train_step=0, rng=RNG(0), timeout_s=0.01)
    thread = in_thread(results, buffer.sample_padded, 3, train_step=1, rng=RNG(0), layout=PromptsLeft(pad_token=9))
    until(lambda: len(buffer._crossing.drawing.turns) == 1)
    assert buffer.metrics()["waiting_draws"] == 1 and buffer.metrics()["waiting_adds"] == 0
    buffer.add(numbered(0, 5), train_step=0)
    thread.join()
    assert results[0].tokens.tolist() == [[0, 0, 9, 9], [1, 1, 1, 9], [2, 2, 2, 2]]
    assert results[0].prompt_width == 2 and len(buffer) == 2
    buffer.close()
    assert buffer.sample_padded(4, train_step=1, rng=RNG(0)).columns["reward"].tolist() == [3, 4]
    with pytest.raises(EndOfStream):
        buffer.sample_padded(4, train_step=1, rng=RNG(0))


def test_write_backs_and_prompts_when_a_draw_waits_pass_it() -> None:
    buffer, results = LockedBuffer(paper_fifo(20, min_size=10)), []
    ids = buffer.add(numbered(0, 4).replace(prompt_id=np.array([7, 7, 8, 8])), train_step=3, priorities=[1, 2, 3, 4])
    thread = in_thread(results, buffer.sample, 2, train_step=3, rng=RNG(0))
    until(lambda: len(buffer._crossing.drawing.turns) == 1)
    assert buffer.update_priorities([0, 99], [5.0, 6.0]) == 1
    assert buffer.update(ids[1:3], reward=[-1.0, -2.0]) == 2
    with buffer.exclusively() as inner:
        assert inner.columns["priority"].tolist() == [5, 2, 3, 4]
        assert inner.columns["reward"].tolist() == [0, -1, -2, 3]
    draw = buffer.sample_prompts([8, 6], 5, train_step=2, rng=RNG(0))  # an older step counts as the newest seen
    assert sorted(draw.rollout_ids.tolist()) == [2, 3] and draw.residence.tolist() == [0, 0]
    assert len(buffer.sample_prompts([7, 8], 1, train_step=3, rng=RNG(0), strategy=random_k)) == 2
    metrics = buffer.metrics()
    assert (metrics["size"], metrics["stale_updates"], metrics["waiting_draws"]) == (4, 1, 1)
    with pytest.raises(DataError):
        buffer.update(ids, reward=[1.0])
    buffer.add(numbered(4, 6), train_step=3)
    thread.join()
    assert len(results[0]) == 2


def test_adder_when_a_draw_by_prompt_uses_rollouts_up_gets_their_room() -> None:
    buffer, results = queue(4), []
    buffer.add(numbered(0, 4).replace(prompt_id=np.full(4, 7)), train_step=0)
    thread = in_thread(results, buffer.add, numbered(4, 2), train_step=0, timeout_s=PATIENCE_S)
    until(lambda: len(buffer._crossing.adding.turns) == 1)
    assert len(buffer.sample_prompts([7], 2, train_step=0, rng=RNG(0))) == 2
    thread.join()
    assert results[0].tolist() == [4, 5]


def test_wait_when_inside_exclusively_is_told_that_it_never_ends() -> None:
    buffer = queue(4)
    with buffer.exclusively(), pytest.raises(CircularWait, match=r"a draw of 2 would have to wait inside exclusively"):
        buffer.sample(2, train_step=0, rng=RNG(0))
    thread = in_thread([], buffer.sample, 2, train_step=0, rng=RNG(0))
    until(lambda: len(buffer._crossing.drawing.turns) == 1)
    with buffer.exclusively(), pytest.raises(CircularWait):  # and not first in line either
        buffer.sample(1, train_step=0, rng=RNG(0))
    with buffer.exclusively():
        buffer.add(numbered(0, 3), train_step=0)  # need not wait
    thread.join()
    assert len(buffer) == 1


def test_steps_when_numpy_or_asked_for_and_timeouts_when_endless_are_taken() -> None:
    for steps in (np.int64(3), lambda: 3):
        buffer = queue(8)
        buffer.add(numbered(0, 4), train_step=np.int32(1), timeout_s=float("inf"))
        buffer.close()
        draws = list(buffer.batches(3, train_step=steps, rng=RNG(0)))
        assert [draw.residence.tolist() for draw in draws] == [[2, 2, 2], [2]]


def test_locked_buffer_when_journaled_gives_the_rest_once_and_has_it_on_record(tmp_path) -> None:
    with JournaledBuffer(paper_fifo(20), tmp_path) as journaled:
        buffer = LockedBuffer(journaled)
        buffer.add(numbered(0, 8), train_step=0)
        buffer.update([0], reward=[50.0])
        used = set(buffer.sample(3, train_step=0, rng=RNG(0)).rollout_ids.tolist())
        buffer.close()
        rest = [i for draw in buffer.batches(4, train_step=0, rng=RNG(0)) for i in draw.rollout_ids.tolist()]
        assert rest == sorted(set(range(8)) - used)
        uses = journaled.columns["uses"].tolist()
    with JournaledBuffer(paper_fifo(20), tmp_path) as again:
        assert again.columns["uses"].tolist() == uses and min(uses) >= 1
        assert again.columns["reward"].tolist() == [50, 1, 2, 3, 4, 5, 6, 7]


def test_locked_buffer_when_saved_and_loaded_is_the_same() -> None:
    buffer, other = LockedBuffer(paper_fifo(10)), LockedBuffer(paper_fifo(10))
    buffer.add(numbered(0, 9), train_step=3)
    other.load_state_arrays(buffer.state_arrays())
    a, b = (each.sample(5, train_step=4, rng=RNG(1)) for each in (buffer, other))
    assert a.rollout_ids.tolist() == b.rollout_ids.tolist() and rewards(a) == rewards(b)


def test_adder_when_a_draw_drops_what_is_too_old_gets_its_room() -> None:
    inner = ReplayBuffer(8, sampler=Oldest(), retention=[MaxUses(1), MaxStaleness(2)], limiter=BoundedQueue())
    buffer, results = LockedBuffer(inner), []
    buffer.add(numbered(0, 8), train_step=0)
    fresh = numbered(8, 4).replace(policy_version_min=np.full(4, 9), policy_version_max=np.full(4, 9))
    thread = in_thread(results, buffer.add, fresh, train_step=9, timeout_s=PATIENCE_S)
    until(lambda: len(buffer._crossing.adding.turns) == 1)
    draw = buffer.sample(4, train_step=9, rng=RNG(0), timeout_s=PATIENCE_S)
    thread.join()
    assert rewards(draw) == [8, 9, 10, 11] and results[0].tolist() == [8, 9, 10, 11]
