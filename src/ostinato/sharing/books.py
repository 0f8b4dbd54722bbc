"""How often, and when last, a reader drew each row of each ring: its own book, shared with nobody."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.repeats import occurrence
from ostinato.sharing.ring import Ring

Int = NDArray[np.int64]


class UseBook:
    """Three words a place of each ring: which row they are about, its uses, the train step of the last."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, int]] = {}  # slot -> where its words begin and end
        self._first: Int = np.empty(0, np.int64)
        self._capacity: Int = np.empty(0, np.int64)
        self._words: Int = np.empty((0, 3), np.int64)

    def arrange(self, rings: Sequence[Ring]) -> None:
        """From now on ring numbers mean these rings; what is known of them is kept."""
        held, words = self._slots, []
        self._capacity = np.array([ring.settings.capacity for ring in rings], np.int64)
        ends = np.cumsum(self._capacity)
        self._first = ends - self._capacity
        self._slots = {}
        for ring, start, stop in zip(rings, self._first.tolist(), ends.tolist(), strict=True):
            own = np.tile(np.array([-1, 0, -1]), (ring.settings.capacity, 1))
            if ring.settings.slot in held:
                a, b = held[ring.settings.slot]
                own = self._words[a:b]
            words.append(own)
            self._slots[ring.settings.slot] = (start, stop)
        self._words = np.concatenate([np.empty((0, 3), np.int64), *words])

    def draw(self, ring: Int, row: Int, train_step: int) -> tuple[Int, Int]:
        """Note one draw of each row; returns uses before it and steps since the last (-1: none), repeats in order."""
        several = len(self._capacity) > 1
        places = self._first[ring] + row % self._capacity[ring] if several else row % self._capacity[0]
        words = self._words[places]
        known = words[:, 0] == row
        uses, since = words[:, 1] * known, train_step - words[:, 2]
        since[~known] = -1
        words[:, 0], words[:, 1], words[:, 2] = row, uses + 1, train_step
        if len(set(places.tolist())) < len(places):
            repeat = occurrence(places)
            uses += repeat
            words[:, 1] += repeat
            since[repeat > 0] = 0
            order = np.argsort(repeat, kind="stable")  # the highest count of a repeated row is written last
            places, words = places[order], words[order]
        self._words[places] = words
        return uses, since
