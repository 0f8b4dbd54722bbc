"""Copying and filling many spans of memory at once with numpy alone, at the speed of `memcpy`.

A span is cut into windows of equal size, the last of which may overlap the one before. All windows of one size are
items of one array that lies over the whole memory and begins an item at every byte, so that one indexing fetches them
all and one indexing sets them. A slice and an assignment in Python for every span would take several times as long as
the copy itself.
"""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from ostinato.ragged import offsets_of

Int = NDArray[np.int64]

LARGEST_BYTES = 1 << 12
"""Of a window."""

FIRST, SPACE = 1, 1 << 48
"""The first address, since numpy takes 0 for none, and how many there are."""

FETCHED_BYTES = 96 << 10
"""Fetched before they are set: still in the cache then, and too few for memory that the system must clear."""

FEW = 64
"""So many spans are sooner copied one by one."""


class Windows:
    """What covers n spans of these lengths, int64 (n,), in items of `item` bytes: 1, 2, 4 or 8."""

    def __init__(self, lengths: Int, item: int = 1) -> None:
        self.lengths = lengths
        self._few = len(lengths) <= FEW
        if not self._few:
            self._cover(lengths, LARGEST_BYTES // item)

    def _cover(self, lengths: Int, largest: int) -> None:
        """The span each window belongs to and where in it it begins; of each size the first window, and the end."""
        logs = np.minimum((np.frexp(lengths)[1] - 1) >> 1, (largest.bit_length() - 1) >> 1)  # -1: of no items
        order = logs.astype(np.int8).argsort(kind="stable")
        logs, sorted_lengths = logs[order], lengths[order]
        sizes = 1 << 2 * np.maximum(logs, 0)
        counts = (sorted_lengths + sizes - 1) // sizes
        firsts = offsets_of(counts)
        places = np.repeat(np.arange(len(order)), counts)
        within = (np.arange(len(places)) - firsts[places]) * sizes[places]
        self._spans, self._shifts = order[places], np.minimum(within, (sorted_lengths - sizes)[places])
        ends = firsts[np.searchsorted(logs, np.arange(int(logs.max(initial=-1)) + 2))].tolist()
        self._sizes = [(4**log, begin, end) for log, (begin, end) in enumerate(pairwise(ends)) if begin < end]

    def copy(self, to: Int, of: Int, item: int) -> None:
        """Copy spans from addresses to addresses, int64 (n,); none that is set may overlap another one."""
        if self._few:
            deque(map(ctypes.memmove, to.tolist(), of.tolist(), (item * self.lengths).tolist()), 0)
            return
        shifts = item * self._shifts - FIRST
        to, of = to[self._spans] + shifts, of[self._spans] + shifts
        for size, begin, end in self._sizes:
            memory, step = _memory(item * size), FETCHED_BYTES // (item * size)
            for first in range(begin, end, step):
                last = min(first + step, end)
                memory[to[first:last]] = memory[of[first:last]]

    def fill(self, to: Int, item: int, byte: int) -> None:
        """Set every byte of spans at these addresses, int64 (n,)."""
        if self._few:
            deque(map(ctypes.memset, to.tolist(), repeat(byte), (item * self.lengths).tolist()), 0)
            return
        to = to[self._spans] + (item * self._shifts - FIRST)
        for size, begin, end in self._sizes:
            _memory(item * size)[to[begin:end]] = np.full(item * size, byte, np.uint8).view(f"V{item * size}")


@cache
def _memory(size: int) -> NDArray[np.void]:
    """The memory of this process as items of so many bytes, one at every byte."""

    class Everything:
        __array_interface__ = {  # noqa: RUF012 - numpy reads it once
            "version": 3,
            "data": (FIRST, False),
            "shape": (SPACE,),
            "strides": (1,),
            "typestr": f"|V{size}",
        }

    return np.asarray(Everything())
