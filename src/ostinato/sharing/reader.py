"""The side of the training process: draws from all rings at once, or moves what is new into a buffer."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np

from ostinato.buffer.draws import ONE
from ostinato.buffer.kernels import kernels as kernels_of
from ostinato.buffer.workspace import FreshMemory, Workspace
from ostinato.errors import ConfigError, DataError, RunError
from ostinato.protocols import Draw, Store
from ostinato.setting_checks import check_whole
from ostinato.sharing.books import UseBook
from ostinato.sharing.directory import MAX_RINGS, RingDirectory
from ostinato.sharing.draining import Drain
from ostinato.sharing.failures import EndOfStream, WaitTimeout, checked_timeout
from ostinato.sharing.locks import POLL_S
from ostinato.sharing.picking import Batch, Picker
from ostinato.sharing.ring import LAYOUT_BYTES, Ring
from ostinato.sharing.rows import Rows
from ostinato.sharing.watch import ProducerStatus, Watch
from ostinato.staleness import residence, staleness


class SharedReader:
    """Reads the rings of a shared directory; any number of readers, each on its own.

    `directory`: the handle, which must exist. `min_size`: draws wait until that many rollouts are held (0: until a
    batch is). `reserve_unread`: producers with `wait_for_readers_s` do not overwrite what this reader has not drained;
    it needs a `name` of its own then. `kernels`: as in `ReplayBuffer`. Uses are counted in this reader, nowhere else.
    Raises `ConfigError` for a negative `min_size` or a name that is none, `DataError` when there is no such directory
    or a file there is no sound ring, `RunError` when a living reader has the name. One thread at a time.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        name: str = "reader",
        min_size: int = 0,
        reserve_unread: bool = False,
        kernels: str = "auto",
    ) -> None:
        check_whole("min_size", min_size, least=0)
        if not name or "/" in name:
            raise ConfigError(f"the name of a reader is part of a file name, got {name!r}")
        self._directory = RingDirectory(directory)
        self._kernels = kernels_of(kernels)
        self._min_size = min_size
        self._rings: dict[int, Ring] = {}
        self._seen, self._closed = -1, False
        self._books, self._watch, self._picker = UseBook(), Watch(), Picker()
        self._rows = Rows((), self._kernels)
        self._drain = Drain(self._directory, name if reserve_unread else None)
        self._drain.begin(self._known())

    def __len__(self) -> int:
        """Rollouts held by all rings at this moment."""
        return self._look().held()

    def can_sample(self, n: int) -> bool:
        """Whether a batch of n >= 1 can be drawn now."""
        return n >= 1 and len(self) >= max(1, self._min_size or n)

    def sample(
        self,
        n: int,
        *,
        train_step: int,
        rng: np.random.Generator,
        out: Workspace | None = None,
        timeout_s: float = 0.0,
    ) -> Draw:
        """Draw n >= 1 rollouts, each uniform over what all rings hold at this moment, with replacement.

        `out`: memory kept from draw to draw, which saves the page faults of a fresh batch. Waits up to `timeout_s`
        until enough are held. Meanwhile raises `ProducerDied` when a producer has died: once for each death while
        others live, at each wait when none does, never again once it is forgiven. `EndOfStream` when all have closed,
        else `WaitTimeout`. With enough held nothing is raised: see `check_producers`.
        """
        if n < 1:
            raise DataError(f"cannot draw {n} rollouts, expected at least 1")
        deadline, batch = _deadline(timeout_s), None
        while batch is None:  # the only ring may be empty for the instant in which one add replaces all it held
            self._wait(lambda: self.can_sample(n), deadline, f"{max(1, self._min_size or n)} rollouts to be held")
            batch = self._picker.draw(self._rows, n, rng, out or FreshMemory())
        return self._draw(batch, train_step)

    def drain(self, into: Store, *, train_step: int, limit: int | None = None, timeout_s: float = 0.0) -> int:
        """Move what this reader has not moved yet into a store; returns how many rollouts.

        Each producer's rollouts enter once and in their order, whole adds together, at train step `train_step`. It
        stops where the store's limiter refuses, at `limit` (an add that is larger goes as one), or at what was there
        when it began. What was overwritten before it was read is counted in `lost`.
        With `timeout_s` it waits until something is new (not until the store has room), and raises what `sample` does.
        """
        if checked_timeout(timeout_s) != 0:
            self._wait(lambda: self._drain.pending(self._look()) > 0, _deadline(timeout_s), "new rollouts")
        return self._drain.move(self._look(), into, train_step, limit) if self._look().rings else 0

    @property
    def lost(self) -> dict[str, int]:
        """By producer, rollouts that were overwritten before `drain` came to them."""
        return {ring.settings.producer: self._drain.lost.get(slot, 0) for slot, ring in self._known().items()}

    def producers(self) -> list[ProducerStatus]:
        """Every producer that ever had a ring here, as it is now."""
        return [self._watch.status(ring) for ring in self._known().values()]

    def alive(self, name: str) -> bool:
        """Whether this producer's process runs and has not closed it; known as soon as the kernel has ended it."""
        return self._watch.status(self._ring_of(name)).alive

    def check_producers(self) -> None:
        """Raise `ProducerDied` when a producer ended without `close()` and has not been forgiven.

        Call it each train step: a draw that need not wait says nothing about deaths.
        """
        self._watch.check(self.producers())

    def forgive(self, name: str) -> None:
        """Go on without a producer that died: do not raise for it again. What it finished is still drawn."""
        self._watch.forgive(self._ring_of(name))

    def metrics(self) -> dict[str, float]:
        """Counters: rollouts held, not yet drained, lost; rows and batches drawn anew because they were overwritten."""
        return {
            "held": float(len(self)),
            "pending": float(self._drain.pending(self._rows)),
            "lost": float(sum(self._drain.lost.values())),
            "torn_rows_redrawn": float(self._picker.torn),
            "batches_redrawn": float(self._picker.retries),
        }

    def close(self) -> None:
        """Let go of everything; producers wait for this reader no more. May be called again, nothing else after it."""
        self._closed = True
        self._drain.close()
        self._watch.close()
        for ring in self._rings.values():
            ring.close()
        self._directory.close()

    def __enter__(self) -> SharedReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _known(self) -> dict[int, Ring]:
        if self._closed:
            raise RunError(f"this reader of {self._directory.path} is closed")
        changes = self._directory.changes[0]
        if changes != self._seen:
            for slot, path in self._directory.rings().items():
                if slot not in self._rings:
                    self._rings[slot] = Ring(path, writable=False)
            self._rings = dict(sorted(self._rings.items()))
            self._seen = changes
        return self._rings

    def _look(self) -> Rows:
        """The rings that hold something, as they are now."""
        begun = sum(bool(ring.counters[LAYOUT_BYTES]) for ring in self._known().values())
        if begun != len(self._rows.rings):
            self._rows = Rows(list(self._rings.values()), self._kernels)
            self._books.arrange(self._rows.rings)
        return self._rows

    def _ring_of(self, name: str) -> Ring:
        for ring in self._known().values():
            if ring.settings.producer == name:
                return ring
        raise DataError(
            f"there is no producer {name!r}, known are {[r.settings.producer for r in self._rings.values()]}"
        )

    def _wait(self, ready: Callable[[], bool], deadline: float, what: str) -> None:
        begin = time.monotonic()
        while not ready():
            producers = self.producers()
            if ready():  # what was finished just before its producer closed or died
                return
            self._watch.check_waiting(producers)
            if producers and all(status.closed for status in producers):
                raise EndOfStream(f"waited for {what}, but all {len(producers)} producers have closed")
            if time.monotonic() >= deadline:
                waited = max(0.0, deadline - begin)
                raise WaitTimeout(
                    f"waited {waited:.3g} s for {what}; {len(self)} are held, of {len(producers)} producers"
                )
            time.sleep(POLL_S)

    def _draw(self, batch: Batch, train_step: int) -> Draw:
        uses, since = self._books.draw(batch.ring, batch.row, train_step)
        return Draw(
            rollouts=batch.rollouts,
            rollout_ids=batch.row * MAX_RINGS + self._rows.slots[batch.ring],
            importance_weights=ONE.repeat(len(batch.row)),
            staleness=staleness(train_step, batch.rollouts.policy_version_min),
            residence=residence(train_step, batch.records["insert_step"]),
            uses=uses,
            steps_since_last_use=since,
        )


def _deadline(timeout_s: float | None) -> float:
    if timeout_s == 0 and type(timeout_s) is float:
        return 0.0
    limit = checked_timeout(timeout_s)
    return math.inf if limit is None else time.monotonic() + limit
