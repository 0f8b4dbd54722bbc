"""File locks that the kernel lets go of when their holder dies, and memory fences.

`flock` belongs to an open file, so a forked child would keep its parent's lock alive: children close what they inherit.
Only local file systems, not network ones.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from ostinato.sharing.failures import WaitTimeout

POLL_S = 0.002
"""Pause between two looks at something another process will change."""


def fence() -> None:
    """Order all memory accesses before this call before all after it: on x86-64 taking a lock is a full barrier.

    Ordinary x86 stores stay in order by themselves, but memcpy writes large blocks with streaming stores, which do not.
    """
    threading.Lock().acquire()


class FileLock:
    """A file that is opened to be locked. In a forked child it is open anew, and held by nobody."""

    _open: ClassVar[weakref.WeakSet[FileLock]] = weakref.WeakSet()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._file()
        FileLock._open.add(self)

    def take(self, timeout_s: float) -> None:
        """Hold it alone. Raises `WaitTimeout` when somebody else holds it for longer."""
        deadline = time.monotonic() + timeout_s
        while not self.try_take():
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"{self._path} is locked by another process, waited {timeout_s:g} s")
            time.sleep(POLL_S)

    def try_take(self) -> bool:
        """Hold it alone if nobody does."""
        return self._attempt(fcntl.LOCK_EX)

    def is_free(self) -> bool:
        """Whether nobody holds it alone: its holder died or let go."""
        free = self._attempt(fcntl.LOCK_SH)
        if free:
            self.let_go()
        return free

    def let_go(self) -> None:
        """Stop holding it."""
        fcntl.flock(self._file(), fcntl.LOCK_UN)

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Hold it alone during the block."""
        self.take(timeout_s)
        try:
            yield
        finally:
            self.let_go()

    def close(self) -> None:
        """Let go and close the file; may be called again."""
        if self._descriptor is not None:
            self.let_go()
        self._drop()

    def _file(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._descriptor

    def _attempt(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file(), kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _drop(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        self._drop()

    @classmethod
    def forget_inherited(cls) -> None:
        """In a forked child: close without letting go, because the lock is the parent's."""
        for lock in list(cls._open):
            lock._drop()


os.register_at_fork(after_in_child=FileLock.forget_inherited)
