"""An engine in a process of its own, so that generating and training overlap on one machine.

Python threads share one interpreter lock, and small models spend much of their time holding it. Requests, weights and
finished groups go through a pipe.
"""

from __future__ import annotations

import multiprocessing
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np

from ostinato.errors import OstinatoError, RunError
from ostinato.interrupt import SIGNALS, held_back
from ostinato.protocols import Generator, GroupRequest, Weights
from ostinato.rollouts import Rollouts


class ProcessGenerator:
    """A `protocols.Generator` whose work is done by `make()`, called in a new process.

    `make` must be importable (a function, or a `functools.partial` of one). Errors of the engine are raised here;
    `RunError` when its process died. The process ends with `close()`, with this object or with the interpreter.
    """

    def __init__(self, make: Callable[[], Generator]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        with held_back():
            self._process.start()
        theirs.close()
        self.close = weakref.finalize(self, _end, self._process, self._pipe)

    def load(self, weights: Weights, version: int) -> None:
        """Send these weights, as arrays."""
        self._ask("load", {name: np.asarray(value) for name, value in weights.items()}, version)

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """All groups, once the last of them is finished."""
        yield from self._ask("stream", requests)

    def _ask(self, *question: Any) -> Any:
        try:
            self._pipe.send(question)
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(timeout=5)
            raise RunError(f"a generator's process ended with exit code {self._process.exitcode}") from error
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _end(process: SpawnProcess, pipe: Connection) -> None:
    process.terminate()
    process.join()
    pipe.close()


def _serve(pipe: Connection, make: Callable[[], Generator]) -> None:
    # Ctrl-C is for the trainer, which ends this process when its step is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    engine: Generator | None = None
    answer: Any
    while True:
        try:
            action, *arguments = pipe.recv()
            try:
                engine = engine or make()
                answer = _answer(engine, action, arguments)
            except (OstinatoError, OSError, MemoryError) as error:
                answer = error
            except Exception as error:  # noqa: BLE001 - the roof of this process: raised again by who asked
                answer = RunError(f"a generator failed: {type(error).__name__}: {error}")
            pipe.send(answer)
        except (EOFError, BrokenPipeError):
            return  # who asked is gone


def _answer(engine: Generator, action: str, arguments: list[Any]) -> list[Rollouts] | None:
    if action == "load":
        engine.load(*arguments)
        return None
    return list(engine.stream(*arguments))
