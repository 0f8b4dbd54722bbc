"""Segments: files of framed records, one after the other; zeros may follow (room taken before it is needed).

head     magic, format, sequence number of the first record, CRC32
records  see `records`; sequence numbers rise by one
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.durable import file_in_place, read_at, write_all
from ostinato.buffer.journal.records import FRAME, Bytes
from ostinato.buffer.journal.records import MAGIC as RECORD_MAGIC
from ostinato.buffer.snapshot import OtherFormatError
from ostinato.errors import CheckpointError, RunError

FORMAT = 1
MAGIC = b"\x89OSTLOG\n"
HEAD = struct.Struct("<8sIQI")
PARTS = 512  # a call takes at most 1,024
STEP_BYTES = 4 << 20  # room is taken in steps of this size


class SegmentReader:
    """Iterates over (sequence number, payload) of the intact records of a segment.

    Afterwards `end` is the byte behind the last of them, `torn` how many bytes of an unfinished one follow, and
    `damage` says what is wrong when intact records lie behind a damaged one: that is no torn tail, but a hole.
    Raises `CheckpointError` when the file is no segment, or its head is damaged; with `first`, the number of its first
    record, as the name of the file has it, a damaged head is passed over and noted in `head_damage`.
    """

    def __init__(self, path: Path, first: int | None = None) -> None:
        self.path = path
        self.end = HEAD.size
        self.torn = 0
        self.damage: str | None = None
        self.following = 0  # one more than the highest sequence number that lies behind the damage
        self.head_damage: str | None = None
        try:
            with open(path, "rb") as file:
                self.first = _read_head(path, file.read(HEAD.size))
        except OtherFormatError:
            raise
        except CheckpointError as error:
            if first is None:
                raise
            self.first, self.head_damage = first, str(error)

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        expected, size = self.first, self.path.stat().st_size
        with open(self.path, "rb", buffering=0) as file:
            while (payload := _record_at(file.fileno(), self.end, size, expected)) is not None:
                yield expected, payload
                expected += 1
                self.end += FRAME.size + len(payload)
            file.seek(self.end)
            rest = file.read()
        self._judge(rest.rstrip(b"\0"), rest, expected)

    def _judge(self, junk: bytes, rest: bytes, expected: int) -> None:
        """Tell a torn tail from a hole: behind a hole stands an intact record."""
        self.torn = len(junk)
        intact, at = 0, rest.find(RECORD_MAGIC)
        while at >= 0:
            sequence = _intact(rest, at)
            if sequence is not None:
                intact, self.following = intact + 1, max(self.following, sequence + 1)
            at = rest.find(RECORD_MAGIC, at + 1)
        if intact:
            self.damage = (
                f"{self.path} is damaged at byte {self.end}: record {expected} does not match its CRC32 or its number, "
                f"the {expected - self.first} before it in this file are intact and so are {intact} behind it"
            )


class SegmentWriter:
    """Appends frames to a segment, at `position`. `sync`: each is on the disk when `append` returns."""

    def __init__(self, path: Path, position: int, *, sync: bool) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._sync = sync
        self._room = os.fstat(self._handle).st_size
        self.path, self.position = path, position
        if self._room > position:  # a torn tail, or room that a killed process had taken
            os.ftruncate(self._handle, position)
            self._room = position

    @classmethod
    def create(cls, directory: Path, first: int, *, sync: bool) -> SegmentWriter:
        """A new segment whose first record will be number `first`."""
        path = directory / f"log-{first:020d}.seg"
        with file_in_place(path) as handle:
            fields = HEAD.pack(MAGIC, FORMAT, first, 0)[:-4]
            write_all(handle, fields + struct.pack("<I", zlib.crc32(fields)))
        return cls(path, HEAD.size, sync=sync)

    def reserve(self, nbytes: int) -> None:
        """Take room for a record of `nbytes`, so that the disk is full now or not at all.

        Raises `OSError`, or `RunError` when the file was removed: nothing written to it would be found again.
        """
        if not os.fstat(self._handle).st_nlink:
            raise RunError(f"{self.path} was removed while its journal was open")
        wanted = self.position + nbytes
        if wanted <= self._room or not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self._handle, self._room, wanted - self._room)
            self._room = wanted
        except OSError:
            os.ftruncate(self._handle, self._room)
            raise
        with suppress(OSError):  # more than needed, when there is more
            os.posix_fallocate(self._handle, self._room, STEP_BYTES)
            self._room += STEP_BYTES

    def append(self, frame: Sequence[Bytes]) -> None:
        """Write one frame, given in parts. Raises `OSError` and takes back what was written of it."""
        position = self.position
        try:
            for first in range(0, len(frame), PARTS):
                position += self._write(frame[first : first + PARTS], position)
            if self._sync:
                getattr(os, "fdatasync", os.fsync)(self._handle)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, self.position)
                self._room = self.position
            raise
        self.position = position
        self._room = max(self._room, position)

    def _write(self, parts: Sequence[Bytes], position: int) -> int:
        total = sum(map(len, parts))
        done = os.pwritev(self._handle, parts, position) if hasattr(os, "pwritev") else 0
        if done < total:  # rare: the rest in one piece
            view = memoryview(b"".join(parts))
            while done < total:
                done += os.pwrite(self._handle, view[done:], position + done)
        return total

    def close(self) -> None:
        """Give back the room that was not needed and close the file."""
        with suppress(OSError):
            os.ftruncate(self._handle, self.position)
        os.close(self._handle)


def _read_head(path: Path, head: bytes) -> int:
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise CheckpointError(f"{path} is no journal segment: it begins with {head[: len(MAGIC)]!r}")
    _, version, first, crc = HEAD.unpack(head)
    if version != FORMAT:
        kind = OtherFormatError if zlib.crc32(head[:-4]) == crc else CheckpointError
        raise kind(f"{path} has journal format {version}, this version reads {FORMAT}")
    if zlib.crc32(head[:-4]) != crc:
        raise CheckpointError(f"{path} is damaged at byte 0: its head does not match its CRC32")
    return int(first)


def _record_at(handle: int, position: int, size: int, expected: int) -> NDArray[np.uint8] | None:
    """The payload of the record with this number, or None when there is no intact one."""
    head = os.pread(handle, FRAME.size, position)
    if len(head) < FRAME.size:
        return None
    magic, crc, sequence, length = FRAME.unpack(head)
    if magic != RECORD_MAGIC or sequence != expected or position + FRAME.size + length > size:
        return None
    payload = np.empty(length, np.uint8)
    done = 0
    while done < length:
        got = read_at(handle, payload[done:].data, position + FRAME.size + done)
        if not got:
            return None
        done += got
    return payload if zlib.crc32(payload.data, zlib.crc32(head[8:])) == crc else None


def _intact(data: bytes, at: int) -> int | None:
    """The sequence number of the record that begins at `at`, or None when it is not intact."""
    if at + FRAME.size > len(data):
        return None
    _, crc, sequence, length = FRAME.unpack_from(data, at)
    end = at + FRAME.size + length
    if end > len(data) or zlib.crc32(memoryview(data)[at + 8 : end]) != crc:
        return None
    return int(sequence)
