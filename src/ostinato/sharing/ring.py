"""One ring: a file with a header, the payload and one record a row. One process writes it, any number read.

    header 64 KiB | payload, `capacity_bytes` | records, `capacity` x record size (appended by the first add)

Row r stands in record r % capacity. Rows `tail` to `head` - 1 are whole. The writer moves `tail` past what it is about
to overwrite, copies, then moves `head`; a reader copies, then looks at `tail` again: what lies before it may be torn.
All counters are aligned 8-byte words, each stored by one instruction.
"""

from __future__ import annotations

import json
import platform
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError
from ostinato.sharing.directory import mapped
from ostinato.sharing.layout import Layout
from ostinato.sharing.locks import FileLock

FORMAT = 1
HEADER_BYTES = 1 << 16
MAGIC = b"OSTRING\0"
_SETTINGS_AT, _COUNTERS_AT, _LAYOUT_AT, _SOURCES_AT = 16, 4096, 8192, 32768

# Numbers of the counters. Head, tail and the rest have a cache line each.
HEAD, TAIL, NEXT_BYTE, WRITTEN_NS, PID, STARTS, CLOSED, LAYOUT_BYTES, SOURCE_BYTES = 0, 8, 16, 17, 18, 19, 20, 21, 22

LOCK_WAIT_S = 10.0
"""How long to wait for a ring's lock, which is held for one copy."""

_NOTHING = nullcontext()


def lock_free_is_safe() -> bool:
    """Whether this processor keeps stores in order and loads in order (x86-64), which lock-free reading relies on."""
    return platform.machine().lower() in ("x86_64", "amd64")


@dataclass(frozen=True, slots=True)
class RingSettings:
    """What is fixed when a ring is made.

    `capacity` rollouts and `capacity_bytes` bytes of payload at most. `sync`: "seqlock" (lock-free reads, x86-64 only),
    "flock" (a file lock for each copy, which the kernel lets go of when its holder dies), or "auto".
    """

    producer: str
    slot: int
    capacity: int
    capacity_bytes: int
    sync: str

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.capacity_bytes < 1:
            raise ConfigError(f"a ring needs at least 1 rollout and 1 byte, got {self.capacity}, {self.capacity_bytes}")
        if self.sync not in ("seqlock", "flock"):
            raise ConfigError(f"sync must be 'auto', 'seqlock' or 'flock', got {self.sync!r}")
        if self.sync == "seqlock" and not lock_free_is_safe():
            raise ConfigError(f"sync 'seqlock' needs an x86-64 processor, this is {platform.machine()}; use 'flock'")


def ring_name(slot: int) -> str:
    """Of the file of the ring in this slot."""
    return f"ring-{slot:04}"


def header_of(settings: RingSettings) -> bytes:
    """The first bytes of the file of a new ring."""
    content = json.dumps(asdict(settings)).encode()
    if len(content) > _COUNTERS_AT - _SETTINGS_AT - 8:
        raise ConfigError(f"the name of a producer is too long: {len(settings.producer)} characters")
    start = MAGIC + FORMAT.to_bytes(8, "little") + _framed(content)
    return start + bytes(HEADER_BYTES - len(start))


class Ring:
    """The mapped file. Raises `DataError` when it is no ring, damaged, or of another format."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self._writable = writable
        self._header = mapped(path, writable=writable, size=HEADER_BYTES)
        self.settings = self._settings()
        self.counters = self._header[_COUNTERS_AT : _COUNTERS_AT + 512].view(np.int64)
        self.lock = FileLock(path.with_name(f"lock-{path.name}")) if self.settings.sync == "flock" else None
        self.layout: Layout | None = None
        self.payload: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.records: NDArray[np.uint8] = np.empty((0, 0), np.uint8)
        self._sources: list[str] = []
        self._sources_read = 0

    def attach(self) -> bool:
        """Map payload and records once the first add has said what they are; whether they are mapped."""
        size = int(self.counters[LAYOUT_BYTES])
        if self.layout is None and size:
            self.layout = Layout.from_json(self._unframed(_LAYOUT_AT, size))
            start, stop = HEADER_BYTES, HEADER_BYTES + self.settings.capacity_bytes
            record = self.layout.record.itemsize
            whole = mapped(self.path, writable=self._writable, size=stop + self.settings.capacity * record)
            self.payload = whole[start:stop]
            self.records = whole[stop:].reshape(self.settings.capacity, record)
        return self.layout is not None

    def bounds(self) -> tuple[int, int]:
        """Tail and head now: rows between them are whole. Raises `DataError` when they make no sense."""
        head = int(self.counters[HEAD])
        tail = int(self.counters[TAIL])  # read second: it may have passed the head that was read first
        if head < 0 or tail < 0 or head - tail > self.settings.capacity:
            raise DataError(f"{self.path} is damaged: rows {tail} to {head}, its capacity is {self.settings.capacity}")
        return tail, max(tail, head)

    def copying(self) -> AbstractContextManager[object]:
        """Around every copy: nothing under "seqlock", alone under "flock"."""
        return _NOTHING if self.lock is None else self.lock.held(LOCK_WAIT_S)

    def publish_layout(self, layout: Layout) -> None:
        """Say what records and payload look like; the file must be long enough."""
        content = _framed(layout.to_json())
        if len(content) > _SOURCES_AT - _LAYOUT_AT:
            raise DataError(f"{len(layout.columns)} payload columns do not fit in the header of a ring")
        self._header[_LAYOUT_AT : _LAYOUT_AT + len(content)] = np.frombuffer(content, np.uint8)
        self.counters[LAYOUT_BYTES] = len(content)

    def sources(self) -> list[str]:
        """Names of the data sets, by source code."""
        size = int(self.counters[SOURCE_BYTES])
        while self._sources_read < size:
            start = _SOURCES_AT + self._sources_read
            length = int.from_bytes(self._header[start : start + 4].tobytes(), "little")
            if start + 4 + length > _SOURCES_AT + size or size > HEADER_BYTES - _SOURCES_AT:
                raise DataError(f"{self.path} is damaged: its names of sources")
            self._sources.append(self._header[start + 4 : start + 4 + length].tobytes().decode("utf-8", "replace"))
            self._sources_read += 4 + length
        return self._sources

    def check_sources(self, names: Iterable[str]) -> None:
        """Raise `DataError` when there is no room in the header for these new names, or one is no text."""
        end = _SOURCES_AT + int(self.counters[SOURCE_BYTES])
        for name in names:
            end += len(_source(name))
            if end > HEADER_BYTES:
                known = len(self.sources())
                raise DataError(f"the names of {known} sources fill the header of a ring, {name[:40]!r} does not fit")

    def add_source(self, name: str) -> None:
        """Give the next source code to this name, which `check_sources` has let in."""
        content = _source(name)
        start = _SOURCES_AT + int(self.counters[SOURCE_BYTES])
        self._header[start : start + len(content)] = np.frombuffer(content, np.uint8)
        self.counters[SOURCE_BYTES] += len(content)

    def close(self) -> None:
        """Close its lock; the memory is unmapped when nobody refers to it."""
        if self.lock is not None:
            self.lock.close()

    def _settings(self) -> RingSettings:
        head = self._header[:_SETTINGS_AT].tobytes()
        if head[:8] != MAGIC:
            raise DataError(f"{self.path} is not a shared ring")
        version = int.from_bytes(head[8:], "little")
        if version != FORMAT:
            raise DataError(f"{self.path} is a ring of format {version}, this version of ostinato reads {FORMAT}")
        size = int.from_bytes(self._header[_SETTINGS_AT : _SETTINGS_AT + 4].tobytes(), "little")
        try:
            fields: dict[str, Any] = json.loads(self._unframed(_SETTINGS_AT, min(size + 8, _COUNTERS_AT)))
            settings = RingSettings(**fields)
        except (ValueError, TypeError) as error:
            raise DataError(f"the settings of {self.path} are damaged or not for this machine: {error}") from None
        if self.path.name != ring_name(settings.slot):
            raise DataError(f"{self.path} is a copy of the ring of slot {settings.slot}")
        return settings

    def _unframed(self, start: int, size: int) -> bytes:
        frame = self._header[start : start + size].tobytes()
        content = frame[8:]
        if len(content) != int.from_bytes(frame[:4], "little") or zlib.crc32(content) != int.from_bytes(
            frame[4:8], "little"
        ):
            raise DataError(f"{self.path} is damaged: its header fails its checksum")
        return content


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "little") + zlib.crc32(content).to_bytes(4, "little") + content


def _source(name: str) -> bytes:
    try:
        content = name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the source {name!r} is no text: {error.reason}") from None
    return len(content).to_bytes(4, "little") + content
