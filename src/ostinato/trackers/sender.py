"""A thread between a run and a tracker: training neither waits for a network nor ends with it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from ostinato.trackers.kinds import Tracker

WAITING = 1024
"""Records that wait for a slow tracker at most; further ones are dropped and counted."""

CLOSE_S = 60.0
"""How long the end of a run waits for a tracker to take what is left."""

Values = tuple[Mapping[str, float], int]


class Sender:
    """Hands records to one tracker, in order. The first failure is told, the others are counted; it goes on trying."""

    def __init__(self, name: str, tracker: Tracker, tell: Callable[[str], None], *, close_s: float = CLOSE_S) -> None:
        self.name, self.sent, self.lost = name, 0, 0
        self._tracker, self._tell, self._close_s = tracker, tell, close_s
        self._waiting: queue.Queue[Values | None] = queue.Queue(WAITING)
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def send(self, values: Mapping[str, float], train_step: int) -> None:
        """Take a record; never waits, never raises."""
        try:
            self._waiting.put_nowait((values, train_step))
        except queue.Full:
            self._lose(f"it has not taken {WAITING} records that wait")

    def close(self, *, failed: bool) -> None:
        """Wait, within bounds, until the tracker has everything; tell how much it did not get."""
        self._failed = failed
        with suppress(queue.Full):  # a tracker that hangs may leave no room for the mark of the end
            self._waiting.put(None, timeout=self._close_s)
            self._thread.join(self._close_s)
        if self._thread.is_alive():
            self.lost += self._waiting.qsize()
            self._tell(f"tracker {self.name} has not answered for {self._close_s:g} s: it is left alone")
        if self.lost:
            self._tell(
                f"tracker {self.name} lacks {self.lost} of {self.sent + self.lost} records; metrics.jsonl has all"
            )

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._tracker.log(item[0], train_step=item[1])
                self.sent += 1
            except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
                self._lose(f"{type(error).__name__}: {' '.join(str(error).split())}")
        try:
            self._tracker.close(failed=self._failed)
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(f"tracker {self.name} could not end its run: {type(error).__name__}: {error}")

    def _lose(self, why: str) -> None:
        self.lost += 1
        if self.lost == 1:
            self._tell(f"tracker {self.name} failed, training goes on: {why}")
