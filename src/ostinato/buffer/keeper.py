"""What a replay buffer does besides drawing: take in, keep, write back, save, let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.admission import Admission, admitted
from ostinato.buffer.checks import (
    check_count,
    check_extras,
    check_ids,
    check_priorities,
    check_rollouts,
    check_setting,
    check_step,
    check_written,
    checked_admission,
    checked_limiter,
)
from ostinato.buffer.columns import Columns
from ostinato.buffer.contents import Contents
from ostinato.buffer.files import load_buffer, save_buffer
from ostinato.buffer.given import Given
from ostinato.buffer.holdings import NONE, Holdings
from ostinato.buffer.kernels import Apart
from ostinato.buffer.kernels import kernels as make_kernels
from ostinato.buffer.limits import Limiter, MinSize, Traffic
from ostinato.buffer.retention import Retention, split_retention
from ostinato.buffer.sampling import Indexed, Sampler, Uniform
from ostinato.buffer.settings import check_sampler
from ostinato.buffer.single import SingleRow
from ostinato.buffer.state import buffer_arrays, checked_arrays, claim, install
from ostinato.buffer.statistics import BufferStatistics
from ostinato.errors import DataError
from ostinato.ragged import check_offsets
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import MOST

Int = NDArray[np.int64]

LARGEST = 1 << 32  # of `first_id` and `id_stride`: no id outgrows 63 bits before 2^31 rollouts were added


class Keeper:
    """All of a `ReplayBuffer` but the draws: rollouts come in, are kept, written to, saved, and leave."""

    def __init__(
        self,
        capacity: int,
        *,
        capacity_bytes: int | None = None,
        sampler: Sampler | None = None,
        retention: Sequence[Retention] = (),
        limiter: Limiter | None = None,
        admission: Sequence[Admission] = (),
        first_id: int = 0,
        id_stride: int = 1,
        kernels: str = "auto",
        threads: int = 1,
    ) -> None:
        self.sampler: Sampler = Uniform() if sampler is None else sampler
        check_sampler("sampler", self.sampler)
        self.limiter: Limiter = MinSize() if limiter is None else checked_limiter(limiter)
        self.admission = checked_admission(admission)
        self.statistics = BufferStatistics()
        self._first_id = check_setting("first_id", first_id, 0, LARGEST)
        self._id_stride = check_setting("id_stride", id_stride, 1, LARGEST)
        self._added, self._sampled, self._adding = 0, 0, False  # an add has begun, and not ended or was interrupted
        self._inserted = self.limiter.origin(0)  # with _sampled: since the limiter's origin
        rules, eviction = split_retention(retention)
        indexes = [part for part in (self.sampler, *rules, eviction) if isinstance(part, Indexed)]
        self._contents = Contents(make_kernels(kernels, threads), indexes)
        self._holdings = Holdings(self._contents, rules, eviction, self.statistics)
        self._single, self._given = SingleRow(), Given(self._contents.kernels)
        self._set_capacity(capacity, capacity_bytes)
        claim(self._contents, (self.sampler, *rules, eviction))

    def __len__(self) -> int:
        return len(self._contents.table)

    @property
    def columns(self) -> Columns:
        """Read-only columns of what is held, oldest first, every row live; valid until the next change."""
        return self._contents.live_columns()

    @property
    def capacity(self) -> int:
        """Rollouts held at most."""
        return self._holdings.capacity

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes held at most."""
        return self._holdings.capacity_bytes

    @property
    def added(self) -> int:
        """Rollouts inserted since the beginning: ids given."""
        return self._added

    @property
    def train_step(self) -> int:
        """The latest train step the buffer has been told."""
        return self._contents.train_step

    @property
    def nbytes(self) -> int:
        """Bytes of what is held: payload, shared values once, and a row of scalars a rollout."""
        return self._contents.nbytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken for it."""
        return self._contents.allocated_bytes

    # ---------------------------------------------------------------- in

    def can_add(self, n: int) -> bool:
        """Whether the limiter lets n rollouts in now."""
        return self.limiter.can_add(check_count("n", n, -MOST), self._traffic())

    def check_add(self, rollouts: Rollouts, *, train_step: int, priorities: Any = None) -> None:
        """Raise the `DataError` that `add` would raise (all but those of a priority function)."""
        train_step = check_step(train_step, self.train_step)
        self._contents.inspect(self._admitted(rollouts, priorities)[2], train_step)

    def add(self, rollouts: Rollouts, *, train_step: int, priorities: Any = None) -> Int:
        """Copy rollouts in at this train step; returns their rollout ids, int64 (n,), -1 where admission refused.

        `priorities`: finite numbers >= 0, one a rollout; left out, the sampler says what new rollouts get.
        """
        train_step = check_step(train_step, self._contents.train_step)
        positions, refused, entering, given = self._admitted(rollouts, priorities)
        ids = self._entered(entering, given, train_step, refused)
        if positions is None:
            return ids
        result = np.full(len(rollouts), -1, np.int64)
        result[positions] = ids
        return result

    # ---------------------------------------------------------------- write-back

    def update_priorities(self, rollout_ids: Any, priorities: Any) -> int:
        """Write priorities back by rollout id; returns how many landed.

        A rollout that left is ignored and counted (`stale_updates`), never its successor hit; of an id given twice
        the last value holds. Raises `DataError`, and changes nothing, for values that are not finite and >= 0.
        """
        ids = check_ids(rollout_ids, "rollout_ids")
        return self._holdings.write(ids, {"priority": check_priorities(priorities, len(ids), ids)})

    def update(self, rollout_ids: Any, **columns: Any) -> int:
        """Write row columns back by rollout id (`reward`, `advantage` ...), payload untouched; as above."""
        ids = check_ids(rollout_ids, "rollout_ids")
        return self._holdings.write(ids, check_written(columns, len(ids)))

    def remove(self, rollout_ids: Any) -> int:
        """Remove rollouts by id; returns how many were there."""
        rows = self._contents.table.rows_of(np.unique(check_ids(rollout_ids, "rollout_ids")))
        rows = rows[rows >= 0]
        self._holdings.leave(rows)
        self._contents.settle()
        return len(rows)

    def clear(self) -> None:
        """Remove everything; ids go on, the limiter begins anew."""
        self._holdings.leave(self._contents.table.live())
        self._contents.settle()
        self._inserted, self._sampled = self.limiter.origin(0), 0

    # ---------------------------------------------------------------- stay

    def retain(self, *, train_step: int) -> None:
        """Remove the rows that a retention rule no longer keeps at this train step."""
        self._holdings.advance(check_step(train_step, self.train_step))
        self._contents.settle()

    def resize(self, capacity: int, capacity_bytes: int | None = None) -> None:
        """Hold this much from now on; what no longer fits leaves at once. Raises `ConfigError`, changing nothing."""
        before = self.capacity, self.capacity_bytes
        self._set_capacity(capacity, capacity_bytes)
        try:
            self._holdings.make_room(None, np.empty(0, np.int64))
        except BaseException:  # of an eviction order
            self._holdings.set_capacity(*before)
            raise
        self._contents.settle()

    def departures(self) -> Int:
        """Uses of the rollouts that left since the last call: int64."""
        return self.statistics.take_departures()

    def metrics(self) -> dict[str, float]:
        """Numbers about what is held and what was drawn; names and meaning in docs/metrics.md."""
        held = {
            "size": float(len(self)),
            "fill": len(self) / self.capacity,
            "bytes": float(self.nbytes),
            "allocated_bytes": float(self.allocated_bytes),
        }
        return held | self.statistics.metrics(self._contents.columns)

    def check(self) -> None:
        """Raise `DataError` when an invariant is broken."""
        self._holdings.check()

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Contents, book-keeping, counters and the state of sampler and retention, as plain arrays for `savez`."""
        return buffer_arrays(self)

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state_arrays` gave, of a buffer of any capacity, sampler and retention; the freshest stay.

        Raises `CheckpointError`, and changes nothing, when the arrays are incomplete or contradict each other, or
        their ids are numbered otherwise than `first_id` and `id_stride`, where those were given, say.
        """
        install(self, checked_arrays(self, arrays))

    def save(self, path: str | Path, **generators: np.random.Generator) -> int:
        """Write everything to one file, whole or not at all, with the state of the given generators; returns its bytes.

        Raises `OSError` when the disk refuses; a file that was there then stays.
        """
        return save_buffer(self, path, generators)

    def load(self, path: str | Path) -> dict[str, np.random.Generator]:
        """Take over a saved buffer of any capacity, sampler and retention; returns the generators saved with it.

        What does not fit leaves in the order of eviction. Raises `CheckpointError`, changing nothing, for a file that
        is damaged, foreign or of another format; the file stays as it is.
        """
        return load_buffer(self, path)

    # ---------------------------------------------------------------- inside

    def _traffic(self) -> Traffic:
        return Traffic(self._inserted, self._sampled, len(self), self.capacity)

    def _set_capacity(self, capacity: int, capacity_bytes: int | None) -> None:
        self.limiter.check(check_setting("capacity", capacity, 1))
        self._holdings.set_capacity(capacity, capacity_bytes)

    def _entered(self, entering: Rollouts, given: Any, step: int, refused: Any, apart: Apart | None = None) -> Int:
        """Take checked rollouts in; returns their ids, none where those that stand `apart` are a case for `add`."""
        n, contents, first = len(entering), self._contents, self._next_id()
        before = contents.train_step, contents.table.sources
        ids = np.arange(first, first + self._id_stride * n, self._id_stride)
        priority = self._new_priority() if given is None else given
        try:
            if given is not None or not self._holdings.exchange(entering, ids, priority, step, apart):
                if apart is not None:
                    return NONE
                self._holdings.enter(entering, ids, priority, step)
        except BaseException:  # of a rule, an eviction order or an index
            contents.withdraw(first)
            contents.train_step, contents.table.sources = before
            self._holdings.look_again()
            raise
        self._added += n
        self._inserted += n
        self.statistics.admitted(n, refused)
        contents.settle()
        self._adding = False
        return ids

    def _next_id(self) -> int:
        """Id of the next rollout: behind all that were given, also by an add that was interrupted before it counted."""
        if self._adding and len(held := self._contents.table["rollout_id"]):
            self._added = max(self._added, (int(held[-1]) - self._first_id) // self._id_stride + 1)
        self._adding = True
        return self._first_id + self._id_stride * self._added

    def _new_priority(self) -> float:
        rule = getattr(self.sampler, "new_priority", None)
        return 1.0 if rule is None else float(rule(self._contents.columns))

    def _admitted(self, rollouts: Rollouts, priorities: Any) -> tuple[Int | None, dict[str, int], Rollouts, Any]:
        """Positions of what may enter (None: all), how many each rule refused, those rollouts, their priorities."""
        check_rollouts(rollouts)
        given = None if priorities is None else check_priorities(priorities, len(rollouts))
        entering: Int | None = None
        refused: dict[str, int] = {}
        if self.admission:
            check_offsets(rollouts.offsets, len(rollouts.tokens))
            mask, refused = admitted(self.admission, rollouts)
            entering = np.flatnonzero(mask)
            rollouts = rollouts.select(entering)
            given = None if given is None else given[entering]
        n = len(rollouts)
        if not self.limiter.can_add(n, self._traffic()):
            raise DataError(f"the queue holds {len(self)} of {self.capacity}: {n} more do not fit; ask can_add first")
        self._holdings.check_size(rollouts)
        if len(self):
            check_extras(rollouts, self._contents.payload.layouts)
        return entering, refused, rollouts, given
