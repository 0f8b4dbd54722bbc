"""Between a buffer and its log: every change becomes a record, and records become the buffer again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.journal.effects import Effects
from ostinato.buffer.journal.growth import grown, growth
from ostinato.buffer.journal.log import Log
from ostinato.buffer.journal.records import Record, decode, encode
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.rewind import rewind
from ostinato.errors import CheckpointError, DataError
from ostinato.rollout_arrays import from_arrays

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Size: TypeAlias = tuple[int, int | None]

SLACK_BYTES = 1 << 16
LEAST_BYTES = 16 << 20
UNBOUNDED = 1 << 53
WITHOUT_EFFECT = ("retain", "departures", "remove")
"""Operations that need no record when nothing left and nothing else changed."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening a journal found.

    `created`: there was none, so this is a first start. `rollouts` held now, `records` replayed behind the snapshot,
    `torn_bytes` of a last record that was never acknowledged, `rewound`: rollouts that left because the clock was set
    back, `duration_s`, `damage`: what a salvage passed over, "" when nothing was.
    """

    rollouts: int
    records: int
    torn_bytes: int
    rewound: int
    duration_s: float
    created: bool = False
    damage: str = ""


class Recorder:
    """Keeps a buffer and a log in step. `max_bytes` of the log; None: twice the bytes of its last snapshot."""

    def __init__(self, buffer: ReplayBuffer, log: Log, max_bytes: int | None) -> None:
        self.buffer, self.log, self.max_bytes = buffer, log, max_bytes
        self.failed_snapshots = 0
        self._limit_bytes, self._retry_bytes = max_bytes or LEAST_BYTES, 0
        self._given = self._capacity
        self._effects = Effects(buffer)
        self._small: Arrays = {}

    def open(self, *, train_step: int | None) -> Recovery:
        """Begin a journal, or fill the buffer from one; `train_step`: see `rewind`."""
        begun, records, rewound, created = perf_counter(), 0, 0, self.log.is_new
        if created:
            self.begin_anew()
        else:
            records, regiven = self._replay()
            rewound = 0 if train_step is None else self._rewind(train_step)
            if regiven or self.log.must_rotate or self.buffer.train_step != self._clock:
                self.rotate()
            self._remember()
        damage, duration_s = "; ".join(self.log.damage), perf_counter() - begun
        return Recovery(len(self.buffer), records, self.log.torn_bytes, rewound, duration_s, created, damage)

    def read(self) -> Recovery:
        """Fill the buffer from the journal and change nothing."""
        begun = perf_counter()
        records, _ = self._replay()
        self.detach()
        return Recovery(len(self.buffer), records, self.log.torn_bytes, 0, perf_counter() - begun)

    def detach(self) -> None:
        """Leave the buffer to itself."""
        self._effects.detach()

    def record(
        self,
        operation: str,
        act: Callable[[], Any],
        arrays: Callable[[Any], Arrays] = lambda result: {},
        *,
        nbytes: int = 0,
    ) -> Any:
        """Let `act` change the buffer and commit what it did, about `nbytes`; `arrays`: those of its result."""
        added, refusal, result = self.buffer.added, None, None
        with self.log.operation(nbytes + self._bound_bytes()):
            try:
                result = act()
            except Exception as error:
                if self.buffer.added != added:
                    raise
                refusal = error
            if refusal is None:
                self._commit(operation, arrays(result))
            else:
                self._commit("retain", {})  # rows too old by now may have been dropped before it refused
        if refusal is not None:
            raise refusal
        self._rotate_when_due()
        return result

    def arrivals(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], Arrays]:
        """Which of the rollouts just added are held, and their book-keeping."""
        stayed, book = self._effects.book(ids)
        return stayed, {f"book.{name}": column for name, column in book.items()}

    def rotate(self) -> None:
        """Write a snapshot and begin the log anew."""
        self.log.rotate(self._snapshot)
        self._retry_bytes = 0

    def begin_anew(self) -> None:
        """Take the buffer as it is for the beginning."""
        self.rotate()
        self._remember()

    def _remember(self) -> None:
        """What the journal knows: later records say what differs."""
        self._effects.left()
        self._small = self._effects.small()

    def _commit(self, operation: str, arrays: Arrays) -> None:
        left, small = self._effects.left(), self._effects.small()
        changed = growth(self._small, small)
        if operation in WITHOUT_EFFECT and not len(left) and not changed and not arrays:
            return
        record = Record(operation, int(self.buffer.train_step), {"left": left, **changed, **arrays})
        self.log.append(lambda sequence: encode(record, sequence))
        self._small = small

    def _bound_bytes(self) -> int:
        """At most this many bytes of a record are not payload: ids that left, small state, names."""
        return 8 * len(self.buffer) + 2 * sum(array.nbytes for array in self._small.values()) + SLACK_BYTES

    def _rotate_when_due(self) -> None:
        if self.log.nbytes <= max(self._limit_bytes, self._retry_bytes):
            return
        try:
            self.rotate()
        except OSError:  # the operation is on record all the same; tried again when the log has grown by half
            self.failed_snapshots += 1
            self._retry_bytes = self.log.nbytes * 3 // 2

    @property
    def _capacity(self) -> Size:
        nbytes = self.buffer.capacity_bytes
        return int(self.buffer.capacity), None if nbytes is None else int(nbytes)

    def _snapshot(self, path: Path) -> None:
        self.log.describe({"given": list(self._given), "capacity": list(self._capacity)})
        size = self.buffer.save(path)
        self._limit_bytes = self.max_bytes or max(LEAST_BYTES, 2 * size)

    # ---------------------------------------------------------------- back

    def _rewind(self, train_step: int) -> int:
        """Set the clock back, and say so before anything is written when rollouts leave for good."""
        held = len(self.buffer)
        rewound = rewind(self.buffer, train_step)
        if rewound:
            try:
                warn(
                    f"train_step {train_step} lies before step {self._clock}, where the journal {self.log.directory} "
                    f"ends: {rewound} of {held} rollouts, of policy versions that will come again, leave for good",
                    RuntimeWarning,
                    stacklevel=4,
                )
            except RuntimeWarning:
                self.buffer.clear()
                raise
        return rewound

    def _replay(self) -> tuple[int, bool]:
        """Fill the buffer, unbounded while it happens: what left is on record.

        Returns how many records that took, and whether the buffer has another capacity than the journal knows.
        """
        if len(self.buffer):
            raise DataError(
                f"the buffer holds {len(self.buffer)} rollouts and the journal {self.log.directory} has its own: "
                "give an empty buffer, and load a snapshot only where recovered.created says that it is a first start"
            )
        about, holdings = self.log.description(), self.buffer._holdings
        known = about.get("given") == list(self._given)
        holdings.set_capacity(UNBOUNDED, None)
        try:
            records, resized = self._follow()
        except BaseException:
            self.buffer.clear()
            holdings.set_capacity(*self._given)
            raise
        self._settle(self._given if not known else resized or about["capacity"])
        self._clock = self.buffer.train_step
        return records, not known

    def _follow(self) -> tuple[int, Size | None]:
        """Snapshot, then records; returns how many, and the capacity that the last resize gave."""
        self.log.restore(self.buffer.load)
        small, records, resized = self._effects.small(), 0, None
        for where, payload in self.log.replay():
            record = decode(payload, where)
            try:
                small = grown(small, record.arrays)
                self._apply(record, small)
                if record.operation == "resize":
                    rollouts, nbytes = record.arrays["capacity"].tolist()
                    resized = rollouts, nbytes or None
            except (DataError, KeyError, ValueError) as error:
                raise CheckpointError(f"{where}: a record cannot be replayed: {error}") from error
            records += 1
        try:
            self._effects.settle(small)
        except (DataError, KeyError, ValueError) as error:  # a salvage that lacks what stood in the first snapshot
            raise CheckpointError(f"{self.log.directory}: the records do not add up to a buffer: {error}") from error
        return records, resized

    def _settle(self, capacity: Size) -> None:
        """Bounded again; under another capacity than before, what is too much leaves."""
        buffer, (rollouts, nbytes) = self.buffer, capacity
        buffer._holdings.set_capacity(rollouts, nbytes)
        if len(buffer) > rollouts or (nbytes is not None and buffer.nbytes > nbytes):
            buffer.resize(rollouts, nbytes)

    def _apply(self, record: Record, small: Arrays) -> None:
        """Do to the buffer what the record says; `small`: the state that is not rows, after it."""
        buffer, effects, arrays = self.buffer, self._effects, record.arrays
        match record.operation:
            case "add":
                effects.leave(arrays["left"])
                rollouts = from_arrays(arrays, "rollouts.")
                effects.append(rollouts, record.part("book."), small["sources"], record.train_step)
            case "draw":
                effects.use(arrays["ids"], record.train_step)
                effects.leave(arrays["left"])
            case "priorities":
                buffer.update_priorities(arrays["ids"], arrays["priorities"])
            case "update":
                buffer.update(arrays["ids"], **record.part("column."))
            case "retain" | "remove" | "clear" | "resize":
                effects.leave(arrays["left"])
            case "departures":
                buffer.departures()
            case _:
                raise DataError(f"unknown operation {record.operation!r}")
