"""Rollouts whose every column follows from their number, so that a wrong or torn row shows; and a producer process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts
from ostinato.sharing import SharedProducer, SharedReader
from ostinato.sharing.ring import lock_free_is_safe
from ostinato.sharing.writer import RingWriter

PATIENCE_S = 60.0
RNG = np.random.default_rng
SYNCS = ["seqlock", "flock"] if lock_free_is_safe() else ["flock"]
SIZE = {"capacity": 64, "capacity_bytes": 1 << 16}


def numbered(first: int, n: int) -> Rollouts:
    """Rollout i: i % 5 completion tokens, texts of i % 4 letters, i % 3 images, all of them saying i."""
    numbers = range(first, first + n)
    return Rollouts.from_completions(
        [[i, i] for i in numbers],
        [[i] * (i % 5) for i in numbers],
        [[-float(i)] * (i % 5) for i in numbers],
        reward=[float(i) for i in numbers],
        group_id=first,
        truncated=[i % 2 == 0 for i in numbers],
        source=[f"set {i % 3}" for i in numbers],
        extras={
            "grid": np.array([[[i, -i]] * 3 for i in numbers], np.float32).reshape(n, 3, 2),
            "note": np.array(["n" * (i % 4) for i in numbers]),
            "image": Ragged.from_rows([np.full((i % 3, 2), i, np.int16) for i in numbers]),
            "words": Ragged.from_rows([np.array(["w" * (i % 4)] * (i % 2), f"U{max(1, i % 4)}") for i in numbers]),
        },
    )


def plain(n: int, length: int = 8, **columns) -> Rollouts:
    """Equal rollouts of `length` tokens."""
    return Rollouts.from_completions([[1]] * n, [[2] * (length - 1)] * n, [[-0.5] * (length - 1)] * n, **columns)


def check(rollouts: Rollouts) -> list[int]:
    """The numbers of the rollouts, after looking at every column of each."""
    numbers = rollouts.reward.astype(int).tolist()
    for row, i in enumerate(numbers):
        start, stop = rollouts.offsets[row : row + 2]
        assert rollouts.tokens[start:stop].tolist() == [i, i] + [i] * (i % 5)
        assert rollouts.loss_mask[start:stop].tolist() == [False] * 2 + [True] * (i % 5)
        assert rollouts.behavior_logprobs[start:stop].tolist() == [0.0] * 2 + [-float(i)] * (i % 5)
        assert rollouts.prompt_length[row] == 2 and rollouts.truncated[row] == (i % 2 == 0)
        assert rollouts.source[row] == f"set {i % 3}"
        assert rollouts.extras["grid"][row].tolist() == [[i, -i]] * 3
        assert rollouts.extras["note"][row] == "n" * (i % 4)
        assert rollouts.extras["image"].row(row).tolist() == [[i, i]] * (i % 3)
        assert rollouts.extras["words"].row(row).tolist() == ["w" * (i % 4)] * (i % 2)
    return numbers


def seen(reader: SharedReader) -> set[int]:
    """Numbers of what is held, by drawing until they have all been seen."""
    rng = RNG(0)
    draws = [reader.sample(len(reader), train_step=99, rng=rng) for _ in range(25)]
    return {number for draw in draws for number in check(draw.rollouts)}


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must happen soon, however loaded the machine is."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Child:
    """A process that runs `mode` below; its lines are read one by one."""

    def __init__(self, mode: str, directory: Path, *arguments: object) -> None:
        command = [sys.executable, __file__, mode, str(directory), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.end()

    def end(self) -> int:
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return code


def produce(directory: str, name: str, groups: str, sync: str = "auto") -> None:
    """Add groups of 4 numbered from 0, say so, and wait to be killed or told to close."""
    producer = SharedProducer(directory, name, **SIZE, sync=sync)
    for k in range(int(groups)):
        producer.add(numbered(producer.written, 4), train_step=k)
    print(producer.written, flush=True)
    sys.stdin.readline()
    producer.close()


def die_inside_add(directory: str, name: str, groups: str, sync: str = "auto") -> None:
    """Add groups, then die by SIGKILL with a group half written over the oldest rows."""
    producer = SharedProducer(directory, name, **SIZE, sync=sync)
    for k in range(int(groups)):
        producer.add(numbered(producer.written, 4), train_step=k)
    whole = RingWriter._copy

    def half(self, pieces, places):
        whole(self, pieces[:1], places[:1])
        os.kill(os.getpid(), signal.SIGKILL)

    RingWriter._copy = half
    producer.add(numbered(30_000, 4), train_step=9)


def hold_reading_lock(directory: str, slot: str) -> None:
    """Hold the lock of a ring until killed, as a reader that is copying does."""
    from ostinato.sharing.ring import Ring

    with Ring(Path(directory) / f"ring-{int(slot):04}", writable=False).copying():
        print("held", flush=True)
        sys.stdin.readline()


def reserve_unread(directory: str, name: str) -> None:
    """Be a reader whom producers wait for, who never reads."""
    with SharedReader(directory, name=name, reserve_unread=True):
        print("reading", flush=True)
        sys.stdin.readline()


def own_directory(parent: str) -> None:
    """Own a shared directory with a living producer until killed."""
    from ostinato.sharing import shared_directory

    with shared_directory(parent) as path:
        producer = SharedProducer(path, "a", **SIZE)
        print(path, flush=True)
        sys.stdin.readline()
        producer.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
