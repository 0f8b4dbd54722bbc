"""SIGKILL at random moments of a process that adds, draws and acknowledges; then look what the journal kept.

Run as a program it is the nursery: for every line on its standard input it forks a process that lives until it is
killed. Each rollout's content follows from its id, so that what comes back can be checked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ostinato.buffer import BoundedQueue, MaxUses, ReplayBuffer, Uniform
from ostinato.buffer.journal import JournaledBuffer
from ostinato.rollouts import Rollouts

GROUP, BATCH, CAPACITY = 4, 3, 64
MAX_BYTES = 150_000  # a snapshot every few dozen operations


def opened(kind: str, directory: Path, sync: str) -> JournaledBuffer:
    """A consume-once queue, or the paper's buffer; small enough to evict and to rotate often."""
    once = {"sampler": Uniform(False), "retention": [MaxUses(1)], "limiter": BoundedQueue()}
    buffer = ReplayBuffer(CAPACITY, kernels="numpy", **(once if kind == "queue" else {}))
    return JournaledBuffer(buffer, directory, sync=sync, max_bytes=MAX_BYTES)


def rollouts_of(ids: np.ndarray) -> Rollouts:
    """The rollouts that have these ids."""
    completions = [(31 * i + np.arange(5 + 7919 * i % 400)) % 1000 for i in ids.tolist()]
    return Rollouts.from_completions(
        [[1, 2, 3]] * len(ids), completions, [-0.001 * row for row in completions], prompt_id=ids, reward=ids / 7
    )


# ---------------------------------------------------------------- the process that is killed


def live(kind: str, directory: Path, sync: str, seed: int) -> None:
    """Add and draw for ever; every acknowledgement is one line on standard output."""
    rng = np.random.default_rng(seed)
    buffer = opened(kind, directory, sync)
    for step in range(buffer.train_step, sys.maxsize):
        if buffer.can_add(GROUP) and (rng.random() < 0.5 or not buffer.can_sample(BATCH)):
            ids = buffer.add(rollouts_of(buffer.added + np.arange(GROUP)), train_step=step)
            acknowledge("added", ids)
        else:
            acknowledge("drawn", buffer.sample(BATCH, train_step=step, rng=rng).rollout_ids)


def acknowledge(what: str, ids: np.ndarray) -> None:
    os.write(1, f"{what} {' '.join(map(str, ids.tolist()))}\n".encode())


def nursery(kind: str, directory: Path, sync: str) -> None:
    """Fork a life for every seed that is read, and say when it has ended."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                live(kind, directory, sync, int(line))
            except BaseException as error:  # noqa: BLE001 - the parent reports it
                os.write(1, f"failed {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os.write(1, f"born {child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


# ---------------------------------------------------------------- the one who kills and looks


@dataclass
class Ledger:
    """What was acknowledged so far, and what was found besides."""

    kind: str
    added: set[int] = field(default_factory=set)
    drawn: dict[int, int] = field(default_factory=dict)
    kills: int = 0
    operations: int = 0
    unacknowledged: int = 0
    torn: int = 0
    in_rotation: int = 0

    def hear(self, line: str) -> None:
        """Take down an acknowledgement."""
        what, *ids = line.split()
        self.operations += 1
        for rollout_id in map(int, ids):
            if what == "added":
                assert rollout_id not in self.added, f"id {rollout_id} was given twice"
                self.added.add(rollout_id)
            else:
                self.drawn[rollout_id] = self.drawn.get(rollout_id, 0) + 1

    def look(self, buffer: JournaledBuffer) -> None:
        """Compare a reopened buffer with what was acknowledged; at most one operation more may have happened."""
        buffer.check()
        columns = buffer.columns
        held, uses = columns["rollout_id"].copy(), columns["uses"].copy()
        more = set(range(len(self.added), buffer.added))
        assert buffer.added >= len(self.added) and len(more) in (0, GROUP), (buffer.added, len(self.added))
        self.added |= more
        lost = self._queue(held) if self.kind == "queue" else self._fifo(held, uses)
        assert not (more and lost), "more than one operation happened that nobody heard of"
        self.unacknowledged += bool(more) + bool(lost)
        for rollout_id in lost:
            self.drawn[rollout_id] = self.drawn.get(rollout_id, 0) + 1
        kept = buffer.buffer.state_arrays()
        expected = rollouts_of(held)
        for name in ("tokens", "behavior_logprobs", "prompt_id", "reward"):
            if len(held):
                np.testing.assert_array_equal(kept[f"rollouts.{name}"], getattr(expected, name))

    def _queue(self, held: np.ndarray) -> list[int]:
        """A rollout is held or was drawn, never both; returns what a draw took that was not acknowledged."""
        assert not set(held.tolist()) & set(self.drawn), "a rollout that was drawn is there again"
        assert set(held.tolist()) <= self.added
        lost = sorted(self.added - set(self.drawn) - set(held.tolist()))
        assert len(lost) in (0, BATCH), f"acknowledged and gone: {lost}"
        return lost

    def _fifo(self, held: np.ndarray, uses: np.ndarray) -> list[int]:
        """The newest are held, each as often used as was acknowledged; returns what one more draw took."""
        newest = sorted(self.added)[-CAPACITY:]
        assert held.tolist() == newest, (held, newest)
        more = uses - np.array([self.drawn.get(i, 0) for i in held.tolist()], np.int64)
        assert (more >= 0).all() and more.sum() in (0, BATCH), more
        return np.repeat(held, more).tolist()


def crash(kind: str, directory: Path, kills: int, *, sync: str = "process", seed: int = 0) -> Ledger:
    """Kill `kills` lives, one after the other, in one directory; raises `AssertionError` at the first contradiction."""
    ledger, rng = Ledger(kind), np.random.default_rng(seed)
    command = [sys.executable, __file__, kind, str(directory), sync]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(kills):
            process.stdin.write(f"{rng.integers(1 << 30)}\n")
            kill_one(process.stdout, ledger, int(rng.integers(0, 60)), float(rng.random() * 0.004))
            left = [path.suffix for path in directory.iterdir()]
            ledger.in_rotation += ".part" in left or left.count(".ost") > 2 or left.count(".seg") > 1
            with opened(kind, directory, sync) as buffer:
                ledger.torn += buffer.recovered.torn_bytes > 0
                ledger.look(buffer)
        process.stdin.close()
    return ledger


def kill_one(output, ledger: Ledger, after: int, delay_s: float) -> None:
    """Wait for `after` acknowledgements of a new life and a moment more, kill it, hear it out."""
    child = None
    for line in output:
        match line.split()[0]:
            case "born":
                child = int(line.split()[1])
            case "ended":
                break
            case "failed":
                raise AssertionError(line)
            case _:
                ledger.hear(line)
                after -= 1
        if child is not None and after <= 0:
            time.sleep(delay_s)
            os.kill(child, signal.SIGKILL)
            child, after = None, sys.maxsize
    ledger.kills += 1


if __name__ == "__main__":
    nursery(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
