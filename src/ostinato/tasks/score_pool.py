"""Completions scored in processes that can be killed, because nothing else ends a verifier that hangs."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from ostinato.errors import ConfigError, RunError
from ostinato.protocols import Task
from ostinato.tasks.score_process import Mark, ScoreProcess

Verifier = Callable[[Task, str], float]
"""(task, text of the completion) to reward."""

MOST_FAILURES = 64
"""Completions in a row whose scoring had to be ended: then it is the scorer that is broken, and the run stops."""


class ScorePool:
    """Marks completions in `workers` processes, each for at most `timeout_s` seconds. For several threads at once.

    `make` returns the verifier and is called in each process; it must be importable (a function, or a
    `functools.partial` of one). A process that hangs or dies is replaced, and what it was marking has a mark that says
    so. The processes are started at the first use, stay, and end with `close`, with this object or with the
    interpreter, however it ends. Raises `ConfigError` when `make` cannot be sent.
    """

    def __init__(self, make: Callable[[], Verifier], *, workers: int, timeout_s: float) -> None:
        if workers < 1 or not timeout_s > 0:
            raise ConfigError(f"expected at least 1 worker and a timeout above 0 s, got {workers} and {timeout_s}")
        try:
            self._make = pickle.dumps(make)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(f"a scorer in processes of its own must be importable, got {make!r}: {error}") from None
        self.workers, self.timeout_s = workers, timeout_s
        self._lock = threading.Lock()
        self._failures = 0
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._make, self.workers, self.timeout_s)

    def mark(self, pairs: Sequence[tuple[Task, str]]) -> list[Mark]:
        """One mark for each (task, text of the completion), in order.

        Raises `RunError`, or what went wrong, when a process cannot prepare the verifier, and `RunError` when
        `MOST_FAILURES` completions in a row, of all threads, had to be given up.
        """
        if self._owner != os.getpid():  # a fork: the processes are its parent's
            self._open()
        marks: list[Mark] = [Mark()] * len(pairs)
        waiting = deque(range(len(pairs)))
        busy: dict[ScoreProcess, int] = {}
        try:
            while waiting or busy:
                while waiting and (process := self._idle_process(wait_for_one=not busy)):
                    busy[process] = waiting.popleft()
                    process.ask(*pairs[busy[process]])
                for process in _worth_a_look(busy):
                    if (mark := process.look()) is not None:
                        marks[busy.pop(process)] = mark
                        self._give_back(process, mark)
        finally:
            for process in busy:  # an error or an interrupt: a late answer must not meet the next question
                process.end()
                self._idle.put(process)
        return marks

    def processes(self) -> list[int]:
        """Numbers of the processes that live now."""
        return [number for process in self._all if (number := process.number)]

    def _open(self) -> None:
        self._owner = os.getpid()
        self._all = [ScoreProcess(self._make, self.timeout_s) for _ in range(self.workers)]
        self._idle: queue.LifoQueue[ScoreProcess] = queue.LifoQueue()
        for process in self._all:
            self._idle.put(process)
        self.close = weakref.finalize(self, _end_all, self._all)

    def _idle_process(self, *, wait_for_one: bool) -> ScoreProcess | None:
        """Who holds processes must not wait for one: two threads that do could wait for each other."""
        if not self.close.alive:
            raise RunError("this pool of scoring processes was closed")
        try:
            return self._idle.get(block=wait_for_one)
        except queue.Empty:
            return None

    def _give_back(self, process: ScoreProcess, mark: Mark) -> None:
        if mark.failure:
            process.start()  # it imports while the others work
        self._idle.put(process)
        with self._lock:
            self._failures = self._failures + 1 if mark.failure else 0
            if self._failures >= MOST_FAILURES:
                raise RunError(
                    f"scoring {self._failures} completions in a row had to be given up, the last by {mark.failure}: "
                    f"the scorer hangs or dies; is task.score_timeout_s = {self.timeout_s:g} enough for it?"
                )


def _worth_a_look(busy: dict[ScoreProcess, int]) -> list[ScoreProcess]:
    """Those that said something or are late; waits for the first."""
    first = min(process.deadline for process in busy)
    heard = wait([process.pipe for process in busy], timeout=max(0.0, first - time.monotonic()))
    now = time.monotonic()
    return [process for process in busy if process.pipe in heard or process.deadline <= now]


def _reopened(make: bytes, workers: int, timeout_s: float) -> ScorePool:
    return ScorePool(pickle.loads(make), workers=workers, timeout_s=timeout_s)


def _end_all(processes: Sequence[ScoreProcess]) -> None:
    for process in processes:
        process.end()
