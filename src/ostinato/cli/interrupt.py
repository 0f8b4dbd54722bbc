"""Ctrl-C: the first asks the run to stop at its next step, the second stops at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def graceful_interrupt(*, quiet: bool = False) -> Iterator[Callable[[], bool]]:
    """Yields `stop()`, True once SIGINT or SIGTERM arrived. The old handlers return with the first signal."""
    asked = False
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()
        if not quiet:
            print("\nstopping at the next step; press Ctrl-C again to stop at once", file=sys.stderr)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield lambda: asked
    finally:
        restore()
