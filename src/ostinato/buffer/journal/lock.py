"""One process writes a journal: a lock on a file of the directory, which vanishes with the process."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

from ostinato.errors import RunError

NAME = ".lock"
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
"""A file system without locks, as some clusters have: a journal there goes unguarded."""

_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """Holds a directory until `close` or the end of the process. Raises `RunError` when another one has it.

    A child made by `fork` neither keeps the lock alive nor may write: `check` raises `RunError` there.
    """

    def __init__(self, directory: Path) -> None:
        import fcntl  # here: without POSIX the buffer must import all the same

        self.directory, self._process = directory, os.getpid()
        # The file stays: were it removed, two processes could hold locks on two files of one name.
        self._file = open(directory / NAME, "ab")  # noqa: SIM115 - closed by close()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                self._file.close()
                raise RunError(
                    f"another process, or another buffer of this one, writes the journal {directory}"
                ) from None
        _held.add(self)

    def check(self) -> None:
        """Raise `RunError` unless this process may write."""
        if self._file.closed or os.getpid() != self._process:
            raise RunError(f"the journal {self.directory} was closed, or belongs to the process that forked this one")
        try:
            in_place = os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.directory / NAME))
        except OSError:
            in_place = False
        if not in_place:  # another process may have locked what stands there now
            raise RunError(f"the journal {self.directory} was moved, or its file {NAME} removed, while it was open")

    def close(self) -> None:
        """Let the next one in."""
        self._file.close()


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
