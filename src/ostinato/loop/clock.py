"""Three clocks that drive the same processes.

A process is a Python generator. It yields `Work` (something that takes time), `Until` (a condition it waits for) or an
`Event` (something observers may want to know), and is resumed with the work's result.

    who         waits for                        unblocked by
    learner     a batch in the store             a generator that admits a group
    generator   admission (staleness bound)      the learner's publish
    generator   room in the store (queue)        the learner's draw

`VirtualClock` runs work inline at its start, with the state of that moment, and delivers the result after the modelled
duration. At one instant the process of lowest rank moves first, and work that starts at one instant with one key is
executed in one call. Nothing depends on real time, so a run repeats bit for bit.
`WallClock` runs work in threads and delivers when it is done.
`TurnClock` runs one work at a time in real time, for hardware that generates and trains in turns. The process of
lowest rank that can move does so up to its next work or event, so the learner always goes before the generators, and
these start with the newest weights. What happens, and in which order, depends on no time.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from ostinato.errors import RunError


class Event:
    """Something that happened in a process, handed to whoever drives the loop."""


@dataclass(frozen=True, slots=True)
class Work:
    """`execute([item, ...])` returns one result an item; items that share `key` may be executed together.

    `duration(result)` is the modelled time in seconds. The virtual clock alone uses it.
    """

    execute: Callable[[list[Any]], list[Any]]
    item: Any
    key: Hashable
    duration: Callable[[Any], float]


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until `ready()`; `what` names the condition in error messages."""

    ready: Callable[[], bool]
    what: str


@dataclass(frozen=True, slots=True)
class InFlight:
    """A result that is known but not yet delivered: what a checkpoint keeps of a process that is working."""

    deliver_at: float
    result: Any


Process = Generator[Work | Until | InFlight | Event, Any, None]


class Clock(Protocol):
    """Drives processes; rank = position in the sequence, the first one moves first and ends the drive."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def drive(self, processes: Sequence[Process]) -> Iterator[Event]:
        """Run all processes until the first one returns; yields their events."""

    def in_flight(self) -> Mapping[int, InFlight]:
        """Results by rank that are known but not yet delivered (none on the wall clock)."""


class VirtualClock:
    """Simulated time."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._heap: list[tuple[float, int, Any]] = []

    @property
    def now(self) -> float:
        """Simulated seconds since the run began."""
        return self._now

    def in_flight(self) -> Mapping[int, InFlight]:
        """Undelivered results by rank."""
        return {rank: InFlight(at, result) for at, rank, result in self._heap}

    def drive(self, processes: Sequence[Process]) -> Iterator[Event]:
        """Run until the first process returns. Raises `RunError` when all wait for each other."""
        stage = _Stage(processes)
        asked: list[tuple[int, Work]] = []
        while True:
            yield from stage.settle()
            if stage.finished:
                return
            for rank, request in stage.take_requests():
                if isinstance(request, InFlight):
                    heapq.heappush(self._heap, (request.deliver_at, rank, request.result))
                else:
                    asked.append((rank, request))
            # Results due at this instant are delivered one by one before any work starts. So what the learner does at
            # an instant, a checkpoint included, comes before the groups that arrive at the same instant, and all
            # work of the instant starts together.
            if not self._heap or self._heap[0][0] > self._now:
                self._start(asked)
                asked = []
                if not self._heap:
                    raise RunError("nobody can move: " + stage.waits())
            self._now, rank, result = heapq.heappop(self._heap)
            stage.deliver(rank, result)

    def _start(self, asked: list[tuple[int, Work]]) -> None:
        together: dict[Hashable, list[tuple[int, Work]]] = {}
        for rank, work in sorted(asked, key=lambda request: request[0]):
            together.setdefault(work.key, []).append((rank, work))
        for members in together.values():
            results = members[0][1].execute([work.item for _, work in members])
            for (rank, work), result in zip(members, results, strict=True):
                heapq.heappush(self._heap, (self._now + work.duration(result), rank, result))


class _RealTime:
    """What the clocks of real time share."""

    def __init__(self, now: float) -> None:
        self._start = time.monotonic() - now

    @property
    def now(self) -> float:
        """Real seconds since the run began, interruptions left out."""
        return time.monotonic() - self._start

    def in_flight(self) -> Mapping[int, InFlight]:
        """Nothing: what was under way is done again after a restart."""
        return {}


class WallClock(_RealTime):
    """Real time: every work item runs in a thread of its own. `leave` is called when the drive ends or is closed while
    work is under way, which is waited for then; its results go nowhere."""

    def __init__(self, now: float = 0.0, *, leave: Callable[[], None] = lambda: None) -> None:
        super().__init__(now)
        self._leave = leave

    def drive(self, processes: Sequence[Process]) -> Iterator[Event]:
        """Run until the first process returns. An error in a thread is raised here."""
        stage = _Stage(processes)
        done: queue.SimpleQueue[tuple[int, Future[list[Any]]]] = queue.SimpleQueue()
        running = 0
        with ThreadPoolExecutor(max_workers=len(processes), thread_name_prefix="ostinato") as pool:
            while True:
                try:
                    yield from stage.settle()
                except GeneratorExit:
                    self._leave()
                    raise
                if stage.finished:
                    self._leave()
                    return
                for rank, request in stage.take_requests():
                    if isinstance(request, InFlight):
                        raise RunError("the wall clock cannot resume work in flight")
                    future = pool.submit(request.execute, [request.item])
                    future.add_done_callback(lambda f, rank=rank: done.put((rank, f)))  # type: ignore[misc]
                    running += 1
                if not running:
                    raise RunError("nobody can move: " + stage.waits())
                rank, finished = done.get()
                running -= 1
                stage.deliver(rank, finished.result()[0])


class TurnClock(_RealTime):
    """Real time, one work at a time in this thread. `enter` is told before each whether the first process works."""

    def __init__(self, now: float = 0.0, *, enter: Callable[[bool], None] = lambda first: None) -> None:
        super().__init__(now)
        self._enter = enter

    def drive(self, processes: Sequence[Process]) -> Iterator[Event]:
        """Run until the first process returns. Raises `RunError` when all wait for each other."""
        stage = _Stage(processes)
        while True:
            rank = stage.movable()
            if rank is None:
                raise RunError("nobody can move: " + stage.waits())
            yield from stage.advance(rank, once=True)
            if stage.finished:
                return
            for rank, request in stage.take_requests():
                if isinstance(request, InFlight):
                    raise RunError("the clock of turns cannot resume work in flight")
                self._enter(rank == 0)
                stage.deliver(rank, request.execute([request.item])[0])


class _Stage:
    """The processes of one drive: which can move now, which wait, which asked for work."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = list(processes)
        self._values: dict[int, Any] = dict.fromkeys(range(len(processes)))
        self._waiting: dict[int, Until] = {}
        self._requests: list[tuple[int, Work | InFlight]] = []
        self.finished = False

    def deliver(self, rank: int, value: Any) -> None:
        """The process may go on with this value."""
        self._values[rank] = value

    def settle(self) -> Iterator[Event]:
        """Move processes, lowest rank first, until nobody can move at this instant."""
        while not self.finished:
            rank = self.movable()
            if rank is None:
                return
            yield from self.advance(rank)

    def take_requests(self) -> list[tuple[int, Work | InFlight]]:
        """Work asked for since the last call."""
        taken, self._requests = self._requests, []
        return taken

    def waits(self) -> str:
        """Who waits for what."""
        return "; ".join(f"process {rank} waits for {until.what}" for rank, until in sorted(self._waiting.items()))

    def movable(self) -> int | None:
        """The lowest rank that can move."""
        ready = (rank for rank, until in self._waiting.items() if until.ready())
        return min([*self._values, *ready], default=None)

    def advance(self, rank: int, *, once: bool = False) -> Iterator[Event]:
        """Move a process until it waits or asks for work; `once`: or until after its next event."""
        self._waiting.pop(rank, None)
        value = self._values.pop(rank, None)
        while True:
            try:
                asked = self._processes[rank].send(value)
            except StopIteration:
                self.finished = self.finished or rank == 0
                return
            value = None
            if isinstance(asked, Until):
                if not asked.ready():
                    self._waiting[rank] = asked
                    return
            elif isinstance(asked, Work | InFlight):
                self._requests.append((rank, asked))
                return
            else:
                yield asked
                if once:
                    self._values[rank] = None
                    return
