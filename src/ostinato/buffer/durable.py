"""Files that are whole or absent, whatever ends the process that writes them."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX, SUFFIX = ".ostinato.", ".part"


@contextmanager
def file_in_place(path: Path) -> Iterator[int]:
    """A descriptor of a fresh file that takes the place of `path` only when the block ends without an error.

    By then its bytes are on the disk, and so is its name when this returns. What killed writers left in the
    directory is removed. Raises `OSError` when the disk refuses, or `path` is there and no regular file (a device, a
    pipe, a directory); what `path` held then stays.
    """
    path = Path(os.path.realpath(path))  # a link stays one, its target is replaced
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "no regular file, it is not replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(path.parent)
    handle, temporary = _locked_temporary(path.parent)
    try:
        yield handle
        os.fchmod(handle, 0o644)
        os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(handle)
    sync_directory(path.parent)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files of dead writers; those of living ones are locked."""
    for left in directory.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError), open(left, "rb") as file:
            _lock(file.fileno())
            left.unlink()


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all bytes at the position of the descriptor. Raises `OSError` when the disk refuses."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def read_at(handle: int, memory: memoryview, position: int) -> int:
    """Fill memory, or its beginning, from a place in a file; returns the bytes read, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [memory], position)
    data = os.pread(handle, len(memory), position)  # a system without it: through a copy
    memory[: len(data)] = data
    return len(data)


def _locked_temporary(directory: Path) -> tuple[int, str]:
    while True:
        handle, name = tempfile.mkstemp(dir=directory, prefix=PREFIX, suffix=SUFFIX)
        with suppress(OSError):  # a file system without locks: nobody removes it then
            _lock(handle)
        if os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)  # another writer took it for left over before it was locked


def _lock(handle: int) -> None:
    """Lock a file until it is closed. Raises `OSError` when another process has it, or where there are no locks."""
    try:
        import fcntl
    except ImportError:  # no POSIX system: the import of this module must work all the same
        raise OSError(errno.ENOLCK, "no file locks on this system") from None
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
