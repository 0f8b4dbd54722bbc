"""The process in which completions are scored: `[make, (task, text), ...]` in, one reward each out.

Run as a script by `score_process`, never imported. It has the standard library alone until it is told what to load.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

LIFELINE = 0
"""Standard input: it ends when the process that asks does, however that ends."""


def main() -> None:
    """Serve the connection whose descriptor is the first argument, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    pipe = Connection(int(sys.argv[1]))
    try:
        verify = _prepared(pipe)
        while verify is not None:
            task, text = pipe.recv()
            pipe.send(_answer(verify, task, text))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # who asks is gone


def _prepared(pipe: Connection) -> Callable[[Any, str], Any] | None:
    path, make = pipe.recv()
    sys.path[:] = path
    try:
        verify: Callable[[Any, str], Any] = pickle.loads(make)()
    except Exception as error:  # noqa: BLE001 - the roof of this process: raised again by who asks
        pipe.send(("unable", *_told(error)))
        return None
    pipe.send(("ready", None, ""))
    return verify


def _answer(verify: Callable[[Any, str], Any], task: Any, text: str) -> tuple[str, Any, str]:
    try:
        return "reward", float(verify(task, text)), ""
    except Exception as error:  # noqa: BLE001 - the roof of this process: raised again by who asks
        return "error", *_told(error)


def _told(error: Exception) -> tuple[Exception | None, str]:
    """The error itself where it is one of ours, and in words."""
    from ostinato.errors import OstinatoError

    return error if isinstance(error, OstinatoError) else None, f"{type(error).__name__}: {error}"


def _end_with_parent() -> None:
    """Be ended, with all that a verifier started, when standard input ends."""
    try:
        from fcntl import F_SETFL, F_SETOWN, F_SETSIG, fcntl  # type: ignore[attr-defined,unused-ignore]
    except ImportError:  # not Linux: works unless C code holds the interpreter's lock for ever
        threading.Thread(target=_wait_for_end, daemon=True).start()
        return
    # The kernel sends it, so no C code that holds the interpreter's lock can keep this process alive.
    fcntl(LIFELINE, F_SETOWN, -os.getpgrp())
    fcntl(LIFELINE, F_SETSIG, signal.SIGKILL)
    fcntl(LIFELINE, F_SETFL, os.O_ASYNC)


def _wait_for_end() -> None:
    os.read(LIFELINE, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
