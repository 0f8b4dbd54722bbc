"""Copying and filling many spans of memory at once with numpy alone, at the speed of `memcpy`.

Spans of about one length are covered by two windows each, as long as the shortest of them: one at the beginning, one at
the end. All windows of one size are items of one array that lies over the whole memory and begins an item at every
byte, so that one indexing fetches them all and one indexing sets them. A slice and an assignment in Python for every
span take several times as long as the copy itself, but for spans so long that it counts more to copy them but once.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]

LONG_BYTES = 1 << 11
"""From here on spans are copied one by one."""

FEW = 64
"""So many spans are, too."""

FIRST, SPACE = 1, 1 << 48
"""The first address, since numpy takes 0 for none, and how many there are."""

FETCHED_BYTES = 64 << 10
"""Fetched before they are set: still in the cache then, and too few for memory that the system must clear."""

_POWERS = (1 << np.arange(LONG_BYTES.bit_length())).astype(np.int16)


class Windows:
    """What covers n spans of these lengths, int64 (n,), in items of at most `item` bytes: 1, 2, 4 or 8."""

    def __init__(self, lengths: Int, item: int = 1) -> None:
        self.lengths = lengths
        self._alone: Int | slice = slice(None)
        self._sizes: list[tuple[int, int, int, bool]] = []
        if len(lengths) > FEW:
            self._cover(lengths, LONG_BYTES // item)

    def _cover(self, lengths: Int, long: int) -> None:
        """Sort the spans that are not long; those less than twice as long as a power of two share a size."""
        short = np.minimum(lengths, long).astype(np.int16)
        order = short.argsort(kind="stable")
        short = short[order]
        cuts = short.searchsorted(_POWERS[: long.bit_length()]).tolist()
        self._alone, self._order = order[cuts[-1] :], order[: cuts[-1]]
        ordered = short[: cuts[-1]].astype(np.int64)
        self._last = ordered.copy()  # where the last window begins
        for begin, end in pairwise(cuts):
            if begin < end:
                size = int(ordered[begin])
                self._last[begin:end] -= size
                self._sizes.append((size, begin, end, size < ordered[end - 1]))

    def copy(self, to: Int, of: Int, item: int) -> None:
        """Copy spans from addresses to addresses, int64 (n,); none that is set may overlap another one."""
        to, of = to - FIRST, of - FIRST
        memory, alone = _memory(), self._alone
        spans = to[alone].tolist(), of[alone].tolist(), (item * self.lengths[alone]).tolist()
        for target, source, size in zip(*spans, strict=True):
            memory[target : target + size] = memory[source : source + size]
        if not self._sizes:
            return
        to, of, last = to[self._order], of[self._order], item * self._last
        self._move(to, of, item, once=True)
        self._move(to + last, of + last, item, once=False)

    def _move(self, to: Int, of: Int, item: int, *, once: bool) -> None:
        for count, begin, end, longer in self._sizes:
            if once or longer:
                size = item * count
                items, step = _items(size), FETCHED_BYTES // size
                for first in range(begin, end, step):
                    some = slice(first, min(first + step, end))
                    items[to[some]] = items[of[some]]

    def fill(self, to: Int, item: int, byte: int) -> None:
        """Set every byte of spans at these addresses, int64 (n,)."""
        to = to - FIRST
        memory, sizes = _memory(), (item * self.lengths[self._alone]).tolist()
        value = memoryview(bytes((byte,)) * max(sizes, default=0))
        for target, size in zip(to[self._alone].tolist(), sizes, strict=True):
            memory[target : target + size] = value[:size]
        if not self._sizes:
            return
        to = to[self._order]
        last, short = to + item * self._last, np.full(LONG_BYTES, byte, np.uint8)
        for count, begin, end, longer in self._sizes:
            items = _items(item * count)
            one = short[: item * count].view(items.dtype)
            items[to[begin:end]] = one
            if longer:
                items[last[begin:end]] = one


@lru_cache(1 << 10)
def _items(size: int) -> NDArray[np.void]:
    """The memory of this process as items of so many bytes, one at every byte."""
    return np.ndarray((SPACE - size + 1,), f"V{size}", _memory(), 0, (1,))


@cache
def _memory() -> memoryview:
    """The memory of this process, byte by byte."""

    class Everything:
        __array_interface__ = {  # noqa: RUF012 - numpy reads it once
            "version": 3,
            "data": (FIRST, False),
            "shape": (SPACE,),
            "typestr": "|u1",
        }

    return np.asarray(Everything()).data
