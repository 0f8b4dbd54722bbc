"""The face for asyncio, beside that for threads, over one buffer."""

import asyncio
import threading
from collections import Counter

import pytest
from shared_rows import PATIENCE_S, RNG, check, numbered

from ostinato import no_buffer, paper_fifo
from ostinato.buffer import RightPadded
from ostinato.sharing import AsyncBuffer, BufferClosed, CircularWait, EndOfStream, LockedBuffer, WaitTimeout


def rewards(draw) -> list[float]:
    return draw.rollouts.reward.tolist()


def queue(capacity: int) -> AsyncBuffer:
    return AsyncBuffer(no_buffer(capacity, order="oldest"))


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_tasks_when_producing_and_consuming_lose_and_double_nothing() -> None:
    async def main() -> list[int]:
        buffer, drawn = queue(20), []

        async def produce(k: int) -> None:
            for group in range(20):
                await buffer.add(numbered(1000 * k + 4 * group, 4), train_step=0)

        async def consume() -> None:
            async for draw in buffer.batches(6, train_step=lambda: 0, rng=RNG(0)):
                drawn.extend(check(draw.rollouts))

        async with asyncio.TaskGroup() as consumers:
            consumers.create_task(consume())
            consumers.create_task(consume())
            async with asyncio.TaskGroup() as producers:
                for k in range(4):
                    producers.create_task(produce(k))
            buffer.close()
        assert len(buffer) == 0
        return drawn

    assert Counter(asyncio.run(main())) == Counter(1000 * k + i for k in range(4) for i in range(80))


def test_close_when_three_are_left_and_the_batch_is_four_gives_the_three_then_the_end() -> None:
    async def main() -> None:
        buffer = queue(20)
        await buffer.add(numbered(0, 3), train_step=0)
        waiting = asyncio.create_task(buffer.sample(4, train_step=0, rng=RNG(0)))
        await settled()
        assert not waiting.done()
        buffer.close()
        assert rewards(await waiting) == [0, 1, 2]
        with pytest.raises(EndOfStream):
            await buffer.sample(4, train_step=0, rng=RNG(0))
        with pytest.raises(BufferClosed):
            await buffer.add(numbered(3, 1), train_step=0)

    asyncio.run(main())


def test_waiter_when_cancelled_takes_nothing_and_lets_the_next_go() -> None:
    async def main() -> None:
        buffer = queue(8)
        first = asyncio.create_task(buffer.sample(4, train_step=0, rng=RNG(0)))
        second = asyncio.create_task(buffer.sample(2, train_step=0, rng=RNG(0)))
        await settled()
        await buffer.add(numbered(0, 3), train_step=0)
        await settled()
        assert not second.done()  # nobody overtakes
        first.cancel()
        assert rewards(await second) == [0, 1]
        assert first.cancelled() and len(buffer) == 1

    asyncio.run(main())


def test_waiter_when_cancelled_in_the_moment_it_is_woken_takes_nothing() -> None:
    async def main() -> None:
        buffer = queue(8)
        waiting = asyncio.create_task(buffer.sample(4, train_step=0, rng=RNG(0)))
        await settled()
        await buffer.add(numbered(0, 4), train_step=0)  # wakes it; it has not run yet
        waiting.cancel()
        await settled()
        assert waiting.cancelled() and len(buffer) == 4

        full = asyncio.create_task(buffer.add(numbered(4, 8), train_step=0))
        await settled()
        assert rewards(await buffer.sample(4, train_step=0, rng=RNG(0))) == [0, 1, 2, 3]
        full.cancel()
        await settled()
        assert full.cancelled() and len(buffer) == 0

    asyncio.run(main())


def test_waits_when_they_run_out_say_who_waited() -> None:
    async def main() -> None:
        buffer = queue(4)
        with pytest.raises(WaitTimeout, match=r"a draw of 2 waited 0\.01 s"):
            await buffer.sample(2, train_step=0, rng=RNG(0), timeout_s=0.01)
        await buffer.add(numbered(0, 4), train_step=0)
        with pytest.raises(WaitTimeout, match="an add of 1 waited 0 s"):
            await buffer.add(numbered(4, 1), train_step=0, timeout_s=0)
        waiting = asyncio.create_task(buffer.add(numbered(4, 2), train_step=0))
        await settled()
        inside = asyncio.create_task(buffer.sample(4, train_step=0, rng=RNG(0)))
        assert rewards(await inside) == [0, 1, 2, 3]
        assert (await waiting).tolist() == [4, 5]
        blocked = asyncio.create_task(buffer.add(numbered(6, 3), train_step=0))
        await settled()
        with pytest.raises(CircularWait):
            await buffer.sample(3, train_step=0, rng=RNG(0))
        blocked.cancel()

    asyncio.run(main())


def test_padded_draws_and_write_backs_when_called_are_those_of_the_buffer() -> None:
    async def main() -> None:
        buffer = AsyncBuffer(paper_fifo(20, min_size=4))
        with pytest.raises(WaitTimeout, match=r"a draw of 2 waited 0\.01 s"):
            await buffer.sample_padded(2, train_step=0, rng=RNG(0), timeout_s=0.01)
        waiting = asyncio.create_task(buffer.sample_padded(2, train_step=0, rng=RNG(0), layout=RightPadded(width=9)))
        await settled()
        assert buffer.metrics()["waiting_draws"] == 1
        ids = await buffer.add(numbered(0, 4), train_step=0, priorities=[1, 2, 3, 4])
        assert (await waiting).tokens.shape == (2, 9)
        assert buffer.update_priorities([0, 99], [5.0, 6.0]) == 1 and buffer.update(ids[:1], reward=[7.0]) == 1
        with buffer.locked.exclusively() as inner:
            assert inner.columns["priority"].tolist() == [5, 2, 3, 4]
            assert inner.columns["reward"].tolist() == [7, 1, 2, 3]
            prompt = int(inner.columns["prompt_id"][0])
        draw = await buffer.sample_prompts([prompt], 1, train_step=0, rng=RNG(0))
        assert len(draw) == 1 and buffer.metrics()["stale_updates"] == 1
        buffer.close()
        rest = await buffer.sample_padded(9, train_step=0, rng=RNG(0))
        assert rest.uses.tolist() == [0] * len(rest) and len(rest) <= 3
        with pytest.raises(EndOfStream):
            await buffer.sample_padded(9, train_step=0, rng=RNG(0))

    asyncio.run(main())


def test_threads_and_tasks_when_over_one_buffer_wake_each_other() -> None:
    locked = LockedBuffer(no_buffer(12, order="oldest"))
    drawn: list[int] = []

    def produce() -> None:
        for group in range(50):
            locked.add(numbered(4 * group, 4), train_step=0, timeout_s=PATIENCE_S)
        locked.close()

    def consume() -> None:
        for draw in locked.batches(3, train_step=0, rng=RNG(0)):
            drawn.extend(check(draw.rollouts))

    async def main() -> None:
        async for draw in AsyncBuffer(locked).batches(5, train_step=0, rng=RNG(0)):
            drawn.extend(check(draw.rollouts))

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join()
    assert Counter(drawn) == Counter(range(200))


def test_task_when_dropped_with_its_loop_does_not_hold_up_threads() -> None:
    locked = LockedBuffer(paper_fifo(20))
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(AsyncBuffer(locked).sample(2, train_step=0, rng=RNG(0)))
    loop.run_until_complete(settled())
    waiting.cancel()
    loop.run_until_complete(settled())
    loop.close()
    locked.add(numbered(0, 3), train_step=0)
    assert len(locked.sample(3, train_step=0, rng=RNG(0), timeout_s=PATIENCE_S)) == 3
