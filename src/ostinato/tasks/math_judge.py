"""Math-Verify in a helper process, so that any thread can call it and no completion can stall the run.

A completion such as `9^9^9` keeps the package busy for ever unless its signal-based limit is on, and that limit works
in a main thread only. The helper has one; should even the limit fail there, the helper is ended and started anew.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from ostinato.errors import MissingExtraError, RunError

DEADLINE_SECONDS = 30.0
_WORKER = Path(__file__).with_name("math_worker.py")


def require() -> None:
    """Raise `MissingExtraError` unless the package is installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtraError("math-verify", "tasks")


def judge(gold: str, text: str) -> bool | None:
    """Whether the mathematics of `text` equals that of `gold`; None when `gold` holds none.

    Raises `MissingExtraError` without the package and `RunError` when the helper cannot start.
    """
    return _judge_of(os.getpid()).ask(gold, text)


@lru_cache(maxsize=1)
def _judge_of(process_id: int) -> _Judge:
    """One helper a process: a fork must not share its parent's pipes."""
    require()
    return _Judge()


class _Judge:
    """Owner of the helper; one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        atexit.register(self._stop)

    def ask(self, gold: str, text: str) -> bool | None:
        with self._lock:
            if self._worker is None or self._worker.poll() is not None:
                self._stop()
                self._worker = _start()
            try:
                reply = _exchange(self._worker, json.dumps([gold, text]), DEADLINE_SECONDS)
            except BaseException:
                # An interrupt between question and reply would leave the reply to the next question.
                self._stop()
                raise
            if not reply:
                self._stop()
                return False
            verdict: bool | None = json.loads(reply)
            return verdict

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.communicate()


def _start() -> subprocess.Popen[str]:
    # -P keeps this directory out of the helper's import path: our modules must not shadow anybody's.
    # In a session of its own the helper does not hear the Ctrl-C that asks the run to finish its step.
    worker = subprocess.Popen(
        [sys.executable, "-P", str(_WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,
    )
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        worker.kill()
        worker.communicate()
        raise RunError(f"the math-verify helper did not start (exit code {worker.returncode}): {_WORKER}")
    return worker


def _exchange(worker: subprocess.Popen[str], question: str, deadline_s: float) -> str:
    """The reply line, or an empty text when the worker ended or had to be ended."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    alarm = threading.Timer(deadline_s, worker.kill)
    alarm.daemon = True
    alarm.start()
    try:
        worker.stdin.write(question + "\n")
        worker.stdin.flush()
        return worker.stdout.readline()
    except BrokenPipeError:
        return ""
    finally:
        alarm.cancel()
