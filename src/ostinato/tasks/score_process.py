"""One process that scores, as its owner sees it: ask, look, end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ostinato.errors import RunError
from ostinato.protocols import Task

START_S = 120.0
"""How long a process may import and prepare."""

TIMEOUT, CRASH = "timeout", "crash"
_WORKER = Path(__file__).with_name("score_worker.py")


@dataclass(frozen=True, slots=True)
class Mark:
    """What scoring one completion came to: a reward; or a `failure`, `TIMEOUT` or `CRASH`, and why; or an error of the
    scorer, in words, with the exception itself where there is one here."""

    reward: float = 0.0
    failure: str = ""
    error: str = ""
    cause: Exception | None = None


class ScoreProcess:
    """A process that marks one completion at a time. Not for several threads at once.

    `make`: a pickled function that returns the verifier. It is started by the first question or by `start`; it ends
    with `end`, or when the process that owns it does.
    """

    def __init__(self, make: bytes, timeout_s: float) -> None:
        self._make, self._timeout_s = make, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._ready = False
        self._question: tuple[Task, str] | None = None
        self._pipe: Connection
        self.deadline = 0.0
        """When `look` is due at the latest, on `time.monotonic`."""

    @property
    def pipe(self) -> Connection:
        """Readable when there is something to `look` at."""
        return self._pipe

    @property
    def number(self) -> int | None:
        """The process id, None while there is no process."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start it; returns before it is ready."""
        ours, theirs = socket.socketpair()
        with theirs:
            # -P keeps the worker's directory out of its import path: our modules must not shadow anybody's. In a
            # session of its own it does not hear the Ctrl-C that asks a run to finish its step, and can be ended with
            # all that it started. What a scorer prints goes where messages go.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER), str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._pipe, self._ready = Connection(ours.detach()), False
        with contextlib.suppress(OSError):  # it may be dead already: `look` tells
            self._pipe.send((sys.path, self._make))
        self.deadline = time.monotonic() + START_S

    def ask(self, task: Task, text: str) -> None:
        """Mark this completion; `look` has the answer."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            self.start()
        self._question = task, text
        if self._ready:
            self._send()

    def look(self) -> Mark | None:
        """The mark, or None while there is none. Raises `RunError`, or what went wrong, when it cannot start."""
        try:
            if self._pipe.poll():
                return self._heard(*self._pipe.recv())
        except (EOFError, OSError):
            return self._died()
        if time.monotonic() < self.deadline:
            return None
        ready = self._ready
        self.end()
        if not ready:
            raise RunError(f"a scoring process was not ready within {START_S:g} s; what does the scorer import?")
        return Mark(failure=TIMEOUT)

    def end(self) -> None:
        """Kill it and what it started. Does nothing in a fork of its owner."""
        process, self._process, self._ready, self._question = self._process, None, False, None
        if process is None or self._owner != os.getpid():
            return
        # Before it is waited for: until then its number is nobody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()
        self._pipe.close()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # it died just now: `look` tells
            self._pipe.send(self._question)
        self.deadline = time.monotonic() + self._timeout_s

    def _heard(self, kind: str, value: Any, words: str) -> Mark | None:
        if kind == "ready":
            self._ready = True
            if self._question is not None:
                self._send()
            return None
        if kind == "unable":
            self.end()
            raise value or RunError(f"a scoring process could not prepare the scorer: {words}")
        self._question = None
        return Mark(reward=value) if kind == "reward" else Mark(error=words, cause=value)

    def _died(self) -> Mark:
        assert self._process is not None
        ready = self._ready
        with contextlib.suppress(subprocess.TimeoutExpired):  # it closed the pipe and lives on
            self._process.wait(timeout=1)
        code = self._process.returncode
        self.end()
        if not ready:
            raise RunError(f"a scoring process ended with exit code {code} before it was ready")
        return Mark(failure=CRASH)
