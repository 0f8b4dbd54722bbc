"""The side of the generating process."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.checks import find_fault, is_sound
from ostinato.errors import ConfigError, DataError, RunError
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import check_whole
from ostinato.sharing.directory import MAX_RINGS, RingDirectory, reserve
from ostinato.sharing.failures import WaitTimeout
from ostinato.sharing.layout import ALIGNMENT
from ostinato.sharing.locks import POLL_S, FileLock
from ostinato.sharing.marks import ReaderMarks
from ostinato.sharing.ring import CLOSED, HEADER_BYTES, PID, Ring, RingSettings, header_of, lock_free_is_safe, ring_name
from ostinato.sharing.writer import RingWriter

TAKE_OVER_WAIT_S = 1.0
"""A reader that looks whether a producer lives holds its lock for an instant."""


class SharedProducer:
    """Puts rollouts into a ring of its own in a shared directory, where any process may read them.

    `directory`: the handle (see `shared_directory`). `name`: who this is. A producer that comes back under the name of
    one that died or was closed takes over its ring: row numbers go on, what was finished stays readable.
    `capacity` (rollouts) and `capacity_bytes` (payload, all of it reserved now) bound what is kept; the oldest leave.
    `wait_for_readers_s`: None never waits and overwrites; otherwise the longest an add waits for living readers that
    ask for it (`SharedReader(reserve_unread=True)`) to drain what it would overwrite.
    `sync`: see `RingSettings`.

    Raises `ConfigError` for impossible settings, `DataError` when there is no such directory or no room, or the ring of
    that name has other settings, `RunError` when a living producer has the name. Threads take turns; not across a fork.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        capacity: int,
        capacity_bytes: int,
        wait_for_readers_s: float | None = None,
        sync: str = "auto",
    ) -> None:
        if sync == "auto":
            sync = "seqlock" if lock_free_is_safe() else "flock"
        waits = isinstance(wait_for_readers_s, (int, float)) and wait_for_readers_s > 0
        if not (waits or wait_for_readers_s is None):
            raise ConfigError(f"wait_for_readers_s must be above 0 or None, got {wait_for_readers_s!r}")
        wanted = _settings(name, capacity, capacity_bytes, sync)
        self.name = name
        self._pid = os.getpid()
        self._wait_s = wait_for_readers_s
        self._directory = RingDirectory(directory)
        with self._directory.locked():
            self._ring, life = self._own_ring(wanted)
            self._directory.announce(ring=True)
        self._life: FileLock | None = life
        self.slot = self._ring.settings.slot
        self._writer = RingWriter(self._ring)
        self._marks = ReaderMarks(self._directory, self.slot)
        self._adding = threading.Lock()

    @property
    def written(self) -> int:
        """Rollouts finished since the ring was made, by this producer and those whose ring it took over."""
        return self._writer.head

    def add(self, rollouts: Rollouts, *, train_step: int) -> NDArray[np.int64]:
        """Copy rollouts in at this train step; readers see all of them or none. Returns their ids, int64 (n,).

        Ids rise, and differ from those of every other producer of the directory.
        Raises `DataError` when they cannot fit at all, have other extra columns than before, numbers that are not
        finite or tokens of a policy version above `train_step`: no buffer would take them. `WaitTimeout` when
        readers did not make room in time, `RunError` in a forked child or after `close`. Then nothing changes.
        """
        if os.getpid() != self._pid:
            raise RunError(f"producer {self.name!r} belongs to process {self._pid}, this is {os.getpid()}")
        if self._life is None:
            raise RunError(f"producer {self.name!r} is closed; a new one of this name goes on in its ring")
        if not len(rollouts):
            return np.empty(0, np.int64)
        if not is_sound(rollouts, train_step):
            find_fault(rollouts, train_step)
        with self._adding:
            first = self._writer.append(rollouts, train_step, self._wait)
        return np.arange(first, first + len(rollouts)) * MAX_RINGS + self.slot

    def close(self) -> None:
        """Say that nothing more will come; what was finished stays readable. May be called again."""
        if self._life is not None and os.getpid() == self._pid:
            self._ring.counters[CLOSED] = 1
            self._life.close()
            self._life = None
            self._ring.close()
            self._directory.close()

    def __enter__(self) -> SharedProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait(self, tail: int) -> None:
        """Until every living reader that asks for it has drained the rows below `tail`."""
        if self._wait_s is None or self._marks.lowest() >= tail:
            return
        deadline = time.monotonic() + self._wait_s
        while (drained := self._marks.fresh()) < tail:
            if time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"producer {self.name!r} waited {self._wait_s:g} s for {self._marks.slowest()} to drain rows "
                    f"{drained} to {tail - 1}"
                )
            time.sleep(POLL_S)

    def _own_ring(self, wanted: RingSettings) -> tuple[Ring, FileLock]:
        """The ring of this name, or a new one; the directory is locked."""
        rings = self._directory.rings()
        for path in rings.values():
            ring = Ring(path, writable=True)
            if ring.settings.producer == wanted.producer:
                return ring, self._taken_over(ring, wanted)
            ring.close()
        slot = next((slot for slot in range(MAX_RINGS) if slot not in rings), None)
        if slot is None:
            raise DataError(f"{self._directory.path} has its {MAX_RINGS} rings already")
        settings = RingSettings(wanted.producer, slot, wanted.capacity, wanted.capacity_bytes, wanted.sync)
        fresh = self._directory.path / ".ring"
        fresh.write_bytes(header_of(settings))  # what a killed process left here is overwritten
        try:
            reserve(fresh, HEADER_BYTES + settings.capacity_bytes)
        except DataError:
            fresh.unlink()
            raise
        life = FileLock(fresh)
        life.take(TAKE_OVER_WAIT_S)
        return Ring(fresh.rename(self._directory.path / ring_name(slot)), writable=True), life

    def _taken_over(self, ring: Ring, wanted: RingSettings) -> FileLock:
        held = ring.settings
        if (held.capacity, held.capacity_bytes, held.sync) != (wanted.capacity, wanted.capacity_bytes, wanted.sync):
            raise DataError(
                f"the ring of {wanted.producer!r} holds {held.capacity} rollouts, {held.capacity_bytes} bytes "
                f"({held.sync}), asked for {wanted.capacity}, {wanted.capacity_bytes} ({wanted.sync}); "
                "take another name"
            )
        life = FileLock(ring.path)
        try:
            life.take(TAKE_OVER_WAIT_S)
        except WaitTimeout:
            life.close()
            raise RunError(
                f"producer {wanted.producer!r} lives already, in process {int(ring.counters[PID])}"
            ) from None
        return life


def _settings(name: str, capacity: int, capacity_bytes: int, sync: str) -> RingSettings:
    if not isinstance(name, str):
        raise ConfigError(f"the name of a producer must be a string, got {name!r}")
    check_whole("capacity", capacity, least=1)
    check_whole("capacity_bytes", capacity_bytes, least=1)
    return RingSettings(name, 0, int(capacity), -(-int(capacity_bytes) // ALIGNMENT) * ALIGNMENT, sync)
