"""A journal directory: snapshots, and segments of what happened after them.

    <directory>/journal.ost        says that this is a journal, and the capacity of its buffer
    <directory>/snapshot-<k>.ost   the buffer before record k
    <directory>/log-<k>.seg        records from number k on
    <directory>/.lock              empty; locked while a process writes

Record k + 1 is written only when record k is whole, a new snapshot before older files go: at every moment the newest
snapshot and the records behind it give the state after the last acknowledged operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.durable import PREFIX, SUFFIX, remove_unfinished, sync_directory
from ostinato.buffer.journal.lock import NAME as LOCK
from ostinato.buffer.journal.lock import DirectoryLock
from ostinato.buffer.journal.records import Bytes
from ostinato.buffer.journal.segments import SegmentReader, SegmentWriter
from ostinato.buffer.snapshot import OtherFormatError, load_arrays, save_arrays
from ostinato.errors import CheckpointError, RunError

ABOUT = "journal.ost"

ASIDE = "damaged-"
"""Beginning of the names that salvaged files get."""


class Log:
    """Opens a directory; `sync`: an appended record is on the disk. `read_only`: takes no lock.

    `salvage`: damaged files are passed over where something can be had without them, noted in `damage`, and set aside
    by the next `rotate`, which must follow. Nothing is changed before the first `append` or `rotate`. Raises
    `CheckpointError` for a directory that holds other things than a journal, `RunError` when another process has it.
    """

    def __init__(self, directory: Path, *, sync: bool, read_only: bool = False, salvage: bool = False) -> None:
        if read_only and not (directory / ABOUT).is_file():
            raise CheckpointError(f"{directory} is no journal: it has no {ABOUT}")
        directory.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(directory, salvage)
        self.directory, self._sync = directory, sync
        self._lock = None if read_only else DirectoryLock(directory)
        self._writer: SegmentWriter | None = None
        self._append_at: tuple[Path, int] | None = None  # where the next record goes, unless a segment must be begun
        self._failed: str | None = None
        self._salvage = salvage
        self.damage: list[str] = []
        self._tidy = False
        self._aside = False  # set older files aside instead of removing them
        self._base = 0  # number of the snapshot that holds
        self.next = 0
        self.torn_bytes = 0

    @property
    def is_new(self) -> bool:
        """Whether there is nothing yet, not even a snapshot."""
        return not _snapshots(self.directory) and not _segments(self.directory)

    @property
    def must_rotate(self) -> bool:
        """Whether damaged files wait to be set aside."""
        return self._aside

    @property
    def nbytes(self) -> int:
        """Bytes of the segment being written."""
        if self._writer is not None:
            return self._writer.position
        return self._append_at[1] if self._append_at else 0

    def describe(self, about: Mapping[str, Any]) -> None:
        """Keep a few facts beside the snapshots, written only when they have changed."""
        path = self.directory / ABOUT
        if self._aside and path.exists():  # it may be what is damaged
            path.with_name(ASIDE + path.name).write_bytes(path.read_bytes())
            save_arrays(path, about, {})
        elif not path.exists() or load_arrays(path)[0] != about:
            save_arrays(path, about, {})

    def description(self) -> dict[str, Any]:
        """What `describe` kept, nothing when that is lost and this a salvage. Raises `CheckpointError`."""
        try:
            return load_arrays(self.directory / ABOUT)[0]
        except CheckpointError as error:
            self._pass_over(error, "goes on without it")
            return {}

    def restore(self, load: Callable[[Path], object]) -> None:
        """Let `load` read the newest snapshot it does not refuse; replay starts there. Raises `CheckpointError`.

        A salvage starts from nothing when the very first snapshot is damaged: records of all operations follow it.
        """
        refused: CheckpointError | None = None
        for number, path in reversed(_snapshots(self.directory).items()):
            try:
                load(path)
            except CheckpointError as error:
                refused = refused or error
            else:
                self.next = self._base = number
                return
        if refused is None or 0 not in _snapshots(self.directory) or isinstance(refused, OtherFormatError):
            why = refused or f"{self.directory} holds no snapshot"
            raise CheckpointError(
                f"{why}; nothing can be had without it: take a copy of the directory, or begin a new one"
            )
        self._pass_over(refused, "starts from an empty buffer and the records behind it")

    def replay(self) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """Where it stands, and the payload, of each record behind the restored snapshot; `next` counts on.

        Raises `CheckpointError` at a hole, before anything is changed; a salvage ends there instead.
        """
        snapshots, segments = _snapshots(self.directory), _segments(self.directory)
        damage, beyond = None, max((*snapshots, *segments))
        for number, path in segments.items():
            if number > self.next:
                damage = f"{path} begins with record {number}, but the one before it ends with {self.next - 1}"
            if number != self.next or damage:
                continue
            reader = self._reader(path, number)
            for sequence, payload in reader:
                yield f"{path} at byte {reader.end}", payload
                self.next = sequence + 1
            self._append_at, self.torn_bytes, damage = (path, reader.end), reader.torn, reader.damage
            beyond = max(beyond, reader.following)
        if damage is None and self.next < max(snapshots):
            damage = (
                f"{self.directory} ends with record {self.next - 1}, its newest snapshot stands behind {beyond - 1}"
            )
        if damage:
            self._pass_over(CheckpointError(damage), "goes on with the records before the gap")
        if self.damage:
            self._aside, self._append_at, self.next = True, None, max(self.next, beyond) + 1

    def _reader(self, path: Path, number: int) -> SegmentReader:
        try:
            reader = SegmentReader(path, number if self._salvage else None)
        except OtherFormatError:
            raise
        except CheckpointError as error:
            self._pass_over(error, "reads the records in it")
            raise
        if reader.head_damage:
            self.damage.append(reader.head_damage)
        return reader

    def _pass_over(self, error: CheckpointError, salvage: str) -> None:
        """Note damage, or else raise what says what `salvage` would do."""
        if isinstance(error, OtherFormatError):
            raise error
        if not self._salvage:
            raise CheckpointError(f"{error}; nothing was changed, salvage=True {salvage}") from None
        self.damage.append(str(error))

    @contextmanager
    def operation(self, nbytes: int) -> Iterator[None]:
        """Around a change of the buffer and the `append` of its record; room for `nbytes` is taken first.

        Raises `OSError` before the change when the disk is full, `RunError` when the journal is over: it is after a
        block that ended with an exception, because then the buffer may be ahead of what is on record.
        """
        self.check()
        if self._writer is None:
            self._writer = self._opened()
        self._writer.reserve(nbytes)
        self._failed = "an operation was interrupted"
        try:
            yield
        except Exception as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise
        self._failed = None

    def append(self, frame: Callable[[int], Sequence[Bytes]]) -> None:
        """Commit the record that `frame` makes for a sequence number, inside an `operation`."""
        assert self._writer is not None
        self._writer.append(frame(self.next))
        self.next += 1

    def rotate(self, save: Callable[[Path], object]) -> None:
        """Let `save` write a snapshot, then remove what is older. A failure leaves the old files."""
        save(self.directory / f"snapshot-{self.next:020d}.ost")
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        self._append_at, self._tidy, self._base = None, False, self.next
        self._remove_older()

    def close(self) -> None:
        """Close the files and let the next process in."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock is not None:
            self._lock.close()

    def check(self) -> None:
        """Raise `RunError` when nothing more may be recorded."""
        if self._lock is None:
            raise RunError(f"the journal {self.directory} was opened for reading")
        self._lock.check()
        if self._failed:
            raise RunError(
                f"the journal {self.directory} failed ({self._failed}); reopen it to go on from its last record"
            )

    def _opened(self) -> SegmentWriter:
        self._remove_older()
        if self._append_at is not None:
            return SegmentWriter(*self._append_at, sync=self._sync)
        return SegmentWriter.create(self.directory, self.next, sync=self._sync)

    def _remove_older(self) -> None:
        if self._tidy:
            return
        for number, path in (*_snapshots(self.directory).items(), *_segments(self.directory).items()):
            if number < self._base and self._aside:
                path.rename(path.with_name(ASIDE + path.name))
            elif number < self._base:
                path.unlink()
        remove_unfinished(self.directory)
        sync_directory(self.directory)
        self._tidy, self._aside = True, False


def _snapshots(directory: Path) -> dict[int, Path]:
    return _numbered(directory, "snapshot-", ".ost")


def _segments(directory: Path) -> dict[int, Path]:
    return _numbered(directory, "log-", ".seg")


def _numbered(directory: Path, prefix: str, suffix: str) -> dict[int, Path]:
    """Files by the number in their name, ascending."""
    found = {path.name[len(prefix) : -len(suffix)]: path for path in directory.glob(f"{prefix}*{suffix}")}
    return dict(
        sorted((int(number), path) for number, path in found.items() if number.isascii() and number.isdecimal())
    )


def _refuse_foreign(directory: Path, salvage: bool) -> None:
    names = sorted(path.name for path in directory.iterdir())
    if ABOUT in names or (salvage and _snapshots(directory)):
        return
    other = [name for name in names if name != LOCK and not (name.startswith(PREFIX) and name.endswith(SUFFIX))]
    if other:
        raise CheckpointError(f"{directory} holds {other[0]!r} but no {ABOUT}: it is no journal")
