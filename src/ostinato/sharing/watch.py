"""Who writes and who died: the kernel lets go of a producer's lock as its process ends, however it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.sharing.failures import ProducerDied
from ostinato.sharing.locks import FileLock
from ostinato.sharing.ring import CLOSED, HEAD, PID, STARTS, WRITTEN_NS, Ring


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """One producer now. `written` rollouts ever finished, `held` of them readable; `quiet_s` since the last.

    `alive`: its process runs and has not closed it. `starts`: how often a producer of this name began.
    """

    name: str
    slot: int
    pid: int
    alive: bool
    closed: bool
    starts: int
    written: int
    held: int
    quiet_s: float

    @property
    def died(self) -> bool:
        """Whether it ended without `close()`."""
        return not (self.alive or self.closed)


class Watch:
    """Looks at the locks of producers."""

    def __init__(self) -> None:
        self._locks: dict[int, FileLock] = {}
        self._forgiven: set[tuple[int, int]] = set()  # deaths: which ring, the how many-eth start of its producer
        self._told: set[tuple[int, int]] = set()

    def status(self, ring: Ring) -> ProducerStatus:
        """Of the producer of this ring, at this moment."""
        slot, counters = ring.settings.slot, ring.counters
        lock = self._locks.get(slot) or self._locks.setdefault(slot, FileLock(ring.path))
        alive = not lock.is_free()
        tail, head = ring.bounds()
        written_ns = int(counters[WRITTEN_NS])
        return ProducerStatus(
            name=ring.settings.producer,
            slot=slot,
            pid=int(counters[PID]),
            alive=alive and not counters[CLOSED],
            closed=bool(counters[CLOSED]),
            starts=int(counters[STARTS]),
            written=int(counters[HEAD]),
            held=head - tail,
            quiet_s=(time.monotonic_ns() - written_ns) / 1e9 if written_ns else 0.0,
        )

    def forgive(self, ring: Ring) -> None:
        """Do not report this death again; a producer that comes back and dies again is reported again."""
        self._forgiven.add((ring.settings.slot, int(ring.counters[STARTS])))

    def check(self, producers: Sequence[ProducerStatus]) -> None:
        """Raise `ProducerDied` for the first death that was not forgiven."""
        for status in self._deaths(producers):
            self._tell(status)

    def check_waiting(self, producers: Sequence[ProducerStatus]) -> None:
        """The same for one who waits: a death that was told is told again only when no producer lives any more."""
        deaths = self._deaths(producers)
        hopeless = not any(status.alive for status in producers)
        for status in deaths:
            if hopeless or (status.slot, status.starts) not in self._told:
                self._tell(status)

    def _deaths(self, producers: Sequence[ProducerStatus]) -> list[ProducerStatus]:
        return [each for each in producers if each.died and (each.slot, each.starts) not in self._forgiven]

    def _tell(self, status: ProducerStatus) -> None:
        self._told.add((status.slot, status.starts))
        raise ProducerDied(status.name, status.pid, status.written, status.quiet_s)

    def close(self) -> None:
        """Close its files."""
        for lock in self._locks.values():
            lock.close()
        self._locks = {}
