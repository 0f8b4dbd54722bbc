"""Ctrl-C: the first asks the run to stop at its next step, the second stops at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def graceful_interrupt(*, quiet: bool = False) -> Iterator[Callable[[], bool]]:
    """Yields `stop()`, True once SIGINT or SIGTERM arrived. The old handlers return with the first signal.

    A signal that was held back until now (see `held_back`) counts. Main thread only.
    """
    asked = False
    previous = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()
        if not quiet:
            print("\nstopping at the next step; press Ctrl-C again to stop at once", file=sys.stderr)

    for number in SIGNALS:
        signal.signal(number, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield lambda: asked
    finally:
        restore()


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let the first signal end the block with KeyboardInterrupt: for a long wait at which nothing is lost. In a thread
    other than the main one, which meets no signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back while a process is started: it inherits that, and meets them when it is ready to.

    A terminal sends Ctrl-C to all its processes; one that is still importing would die of it with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
