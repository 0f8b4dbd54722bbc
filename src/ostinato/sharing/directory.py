"""The directory through which processes find each other's rings: plain files, mapped into memory.

Files rather than named shared-memory segments: one handle (a path) finds everything, permissions and cleaning up are
those of files, and no resource tracker of one process deletes what another still uses. On `/dev/shm` they are memory.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.sharing.locks import FileLock

MAX_RINGS = 1024
"""Rings of one directory at most; rollout ids are row * MAX_RINGS + slot."""

LOCK_WAIT_S = 30.0
"""How long to wait for the directory's lock, which is held for as long as making a ring takes."""

_PREFIX = "ostinato-"
_NAMES = ("index", "lock", "owner", "ring", "reader-")
_MAGIC = int.from_bytes(b"OSTDIR01", "little")
_MAGIC_AT, _RINGS_AT, _READERS_AT = 0, 8, 16
_BYTES = 4096


class RingDirectory:
    """Who has a ring and who reads: files `ring-SLOT`, `reader-NAME`, and a counter that says when to look again.

    Raises `DataError` when there is no such directory, it holds other things, or its index is not one: who comes late,
    to a directory that its owner removed, must not make one that nobody will remove.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        _refuse_foreign(self.path)
        try:
            self._lock = FileLock(self.path / "lock")
        except OSError as error:
            raise DataError(f"{self.path / 'lock'} cannot be opened: {error.strerror}") from error
        with self.locked():
            if not (self.path / "index").exists():
                (self.path / ".index").write_bytes(_MAGIC.to_bytes(8, "little") + bytes(_BYTES - 8))
                os.replace(self.path / ".index", self.path / "index")
        self._index = mapped(self.path / "index", writable=True, size=_BYTES).view(np.int64)
        if self._index[_MAGIC_AT] != _MAGIC:
            raise DataError(f"{self.path / 'index'} is not the index of a directory of shared rings")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory, to change which files are in it. Raises `WaitTimeout`."""
        with self._lock.held(LOCK_WAIT_S):
            yield

    @property
    def changes(self) -> tuple[int, int]:
        """How often a ring and how often a reader appeared."""
        return int(self._index[_RINGS_AT]), int(self._index[_READERS_AT])

    def announce(self, *, ring: bool) -> None:
        """Count a new ring, or else a new reader; the directory must be locked."""
        self._index[_RINGS_AT if ring else _READERS_AT] += 1

    def rings(self) -> dict[int, Path]:
        """The ring files by slot, ascending."""
        found = {path.name.removeprefix("ring-"): path for path in self.path.glob("ring-[0-9]*")}
        return dict(sorted((int(slot), path) for slot, path in found.items() if slot.isascii() and slot.isdecimal()))

    def readers(self) -> list[Path]:
        """The files of readers that ask producers to wait for them."""
        return sorted(self.path.glob("reader-*"))

    def close(self) -> None:
        """Close its files; may be called again."""
        self._lock.close()


def _refuse_foreign(path: Path) -> None:
    if not path.is_dir():
        raise DataError(f"there is no directory {path}; shared_directory() makes one, for as long as its block lasts")
    names = sorted(each.name for each in path.iterdir())
    if "index" not in names:
        other = [name for name in names if not name.lstrip(".").startswith(_NAMES)]
        if other:
            raise DataError(f"{path} holds {other[0]!r} but no index: it is no directory of shared rings")


def mapped(path: Path, *, writable: bool, size: int) -> NDArray[np.uint8]:
    """The first `size` bytes of a file as shared memory. Raises `DataError` when it is shorter.

    A mapping beyond the end of a file would kill the process at the first access.
    """
    try:
        file = open(path, "r+b" if writable else "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror}") from error
    with file:
        have = os.fstat(file.fileno()).st_size
        if have < size:
            raise DataError(f"{path} has {have} bytes, expected at least {size}")
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    return np.frombuffer(memory, np.uint8)


def reserve(path: Path, size: int) -> None:
    """Make the file `size` bytes long, all of them backed. Raises `DataError` when there is no room.

    Without this a full memory file system would kill the process at the first access.
    """
    with open(path, "r+b") as file:
        have, free = os.fstat(file.fileno()).st_size, shutil.disk_usage(path.parent).free
        if size - have > free:
            raise DataError(f"no room for {size} bytes in {path.parent}, {free} are free")
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                _write_zeros(file, size)
        except BaseException as error:
            with suppress(OSError):
                os.ftruncate(file.fileno(), have)  # give back what was had, others need it
            if not isinstance(error, OSError):
                raise
            raise DataError(f"no room for {size} bytes in {path.parent}, {free} are free: {error.strerror}") from None


def _write_zeros(file: BinaryIO, size: int) -> None:
    piece = 1 << 20
    for start in range(file.seek(0, os.SEEK_END), size, piece):
        file.write(bytes(min(piece, size - start)))
    file.flush()


@contextmanager
def shared_directory(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """A fresh directory for rings that goes when the block ends.

    `parent`: where; by default `/dev/shm` (memory) or, where there is none, the directory for temporary files. What
    killed processes left there is removed first.
    """
    memory = Path("/dev/shm")
    home = Path(parent) if parent is not None else memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    remove_abandoned(home)
    path = Path(tempfile.mkdtemp(dir=home, prefix=_PREFIX))
    owner = FileLock(path / ".owner")
    owner.take(LOCK_WAIT_S)
    os.rename(path / ".owner", path / "owner")  # from here on a free lock means an owner who is gone
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        owner.close()


def remove_abandoned(parent: Path) -> None:
    """Remove the directories below `parent` whose owner died and whose rings nobody writes or reads any more."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process was faster
            if not (path / "owner").exists() or path.stat().st_uid != os.getuid():
                continue
            locks = [FileLock(file) for file in (path / "owner", *path.glob("ring-*"), *path.glob("reader-*"))]
            if all(lock.is_free() for lock in locks):
                shutil.rmtree(path, ignore_errors=True)
            for lock in locks:
                lock.close()
