"""Trees of fan-out 16 over one value a row: sums with a prefix search, and extremes.

Touched parents are computed anew from their children, never corrected by differences, so nothing drifts: after any
number of writes a sum is what a fresh tree would hold. Everything works on whole batches. With compiled kernels it
takes a third of the time, and the results are the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.kernels import COMPILED
from ostinato.errors import DataError

FAN_OUT = 16
ROOT = 4096  # entries at the top, searched at once


class BlockTree:
    """Values by row and, above them, one digest of each block of 16, up to a root of at most 4096 entries."""

    _empty = 0.0  # what a row without a value holds

    def __init__(self, size: int = 0) -> None:
        self._size = 0
        self._allocate(size)
        self.reset(np.full(size, self._empty))

    def __len__(self) -> int:
        return self._size

    @property
    def leaves(self) -> NDArray[np.float64]:
        """The value of every row, (size,); read only."""
        view = self._levels[0].reshape(-1)[: self._size]
        view.flags.writeable = False
        return view

    def reset(self, values: NDArray[np.float64]) -> None:
        """Take the values of all rows, (size,)."""
        self._check(values)
        self._size = len(values)
        if len(values) > self._levels[0].size:
            self._allocate(len(values))
        flat = self._levels[0].reshape(-1)
        flat[: len(values)], flat[len(values) :] = values, self._empty
        self._recompute()

    def grow(self, size: int) -> None:
        """Make room for `size` rows; the new ones are empty. Never shrinks; amortised O(1) a row."""
        if size > self._levels[0].size:
            held = self.leaves
            self._allocate(max(size, 2 * self._size))
            self._levels[0].reshape(-1)[: len(held)] = held
            self._recompute()
        self._size = max(size, self._size)

    def set(self, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Write values, (n,), to rows, (n,); of a row given twice the last value stays. O(n log size)."""
        if not len(rows):
            return
        self._check(values)
        leaves = self._levels[0].reshape(-1)
        if COMPILED:
            self._gained(COMPILED[0].write(leaves, rows, values))
            for level in range(len(self._levels)):
                self._digest_compiled(level, self._above(level), rows)
        else:
            once = distinct(np.sort(rows))
            before = np.count_nonzero(leaves[once])
            leaves[rows] = values
            self._gained(int(np.count_nonzero(leaves[once]) - before))
            touched = distinct(once // FAN_OUT)
            for level in range(len(self._levels)):
                self._above(level)[touched] = self._digest(level, touched)
                touched = distinct(touched // FAN_OUT)
        self._close()

    def _above(self, level: int) -> NDArray[np.float64]:
        """The digests of the blocks of a level."""
        return self._top if level + 1 == len(self._levels) else self._levels[level + 1].reshape(-1)

    def _allocate(self, size: int) -> None:
        """Empty levels for so many rows."""
        self._levels = [self._blocks(size)]
        while len(self._levels[-1]) > ROOT:
            self._levels.append(self._blocks(len(self._levels[-1])))
        self._top = np.full(len(self._levels[-1]), self._empty)

    def _blocks(self, entries: int) -> NDArray[np.float64]:
        return np.full((max(1, -(-entries // FAN_OUT)), FAN_OUT), self._empty)

    def _recompute(self) -> None:
        for level, blocks in enumerate(self._levels):
            self._above(level)[: len(blocks)] = self._digest(level, None)
        self._close()

    def _check(self, values: NDArray[np.float64]) -> None:
        """Raise `DataError` for a value that the tree cannot hold."""

    def _close(self) -> None:
        """The entries below the root have changed."""

    def _gained(self, positive: int) -> None:
        """So many more values are not 0 now."""

    def _digest(self, level: int, blocks: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """One number for each of these blocks of a level (None: all)."""
        raise NotImplementedError

    def _digest_compiled(self, level: int, above: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        """Those of the blocks above these rows, written to the level above."""
        raise NotImplementedError


class SumTree(BlockTree):
    """Sums of non-negative float64 values by row, and the row at which a running sum passes a mass.

    Inside a block running sums are stored, so that a search is one gather and one comparison a level. Raises
    `DataError` for values that are negative, infinite or NaN.
    """

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(self._root[-1])

    @property
    def positive(self) -> int:
        """Rows whose value is above 0."""
        return self._positive

    def reset(self, values: NDArray[np.float64]) -> None:
        super().reset(values)
        self._positive = int(np.count_nonzero(values))

    def find(self, masses: NDArray[np.float64]) -> NDArray[np.int64]:
        """For each mass in [0, total) the row whose interval of the running sum holds it: int64, same shape (n,).

        Rounding cannot lead astray: a mass at or beyond the end of a block goes to its last positive row, and a row of
        value 0 spans no interval, so it is never returned. Raises `DataError` when every value is 0.
        """
        if not self.total > 0:
            raise DataError(f"the sum over {self._size} rows is {self.total}: there is no mass to find")
        if COMPILED:
            return self._find_compiled(COMPILED[0], masses)
        left = np.minimum(masses, np.nextafter(self.total, 0))
        node = np.searchsorted(self._root, left, side="right")
        left = left - np.where(node > 0, self._root[node - 1], 0.0)
        for running in reversed(self._running):
            sums = running.take(node, axis=0)
            left = np.minimum(left, np.nextafter(sums[:, -1], 0))
            child = (sums > left[:, None]).argmax(axis=1)
            before = sums[np.arange(len(sums)), child - 1]
            left = left - np.where(child > 0, before, 0.0)
            node = node * FAN_OUT + child
        leaf: NDArray[np.int64] = node.astype(np.int64, copy=False)
        return leaf

    def _find_compiled(self, compiled: Any, masses: NDArray[np.float64]) -> NDArray[np.int64]:
        node, left = np.empty(len(masses), np.int64), np.empty(len(masses))
        compiled.begin(self._root, masses, node, left)
        for running in reversed(self._running):
            compiled.descend(running, node, left)
        return node

    def _check(self, values: NDArray[np.float64]) -> None:
        if len(values) and not (values.min() >= 0 and values.max() < np.inf):
            bad = values[~((values >= 0) & (values < np.inf))][0]
            raise DataError(f"a sum tree holds finite values of at least 0, got {bad}")

    def _allocate(self, size: int) -> None:
        super()._allocate(size)
        self._running = [np.zeros_like(level) for level in self._levels]

    def _close(self) -> None:
        self._root = np.cumsum(self._top)

    def _gained(self, positive: int) -> None:
        self._positive += positive

    def _digest(self, level: int, blocks: NDArray[np.int64] | None) -> NDArray[np.float64]:
        if blocks is None:
            return np.cumsum(self._levels[level], axis=1, out=self._running[level])[:, -1]
        sums = np.cumsum(self._levels[level].take(blocks, axis=0), axis=1)
        self._running[level][blocks] = sums
        return sums[:, -1]

    def _digest_compiled(self, level: int, above: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        COMPILED[0].add_up(self._levels[level], self._running[level], above, rows, FAN_OUT**level)


class MaxTree(BlockTree):
    """The greatest value of all rows; a row without one holds -inf."""

    _empty = -np.inf

    @property
    def value(self) -> float:
        """The greatest value, -inf when there is none."""
        return float(self._top.max())

    def _digest(self, level: int, blocks: NDArray[np.int64] | None) -> NDArray[np.float64]:
        values = self._levels[level] if blocks is None else self._levels[level].take(blocks, axis=0)
        return np.asarray(values.max(axis=1))

    def _digest_compiled(self, level: int, above: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        COMPILED[0].extremes(self._levels[level], above, rows, FAN_OUT**level, True)


class MinTree(BlockTree):
    """The least value of all rows; a row without one holds inf."""

    _empty = np.inf

    @property
    def value(self) -> float:
        """The least value, inf when there is none."""
        return float(self._top.min())

    def _digest(self, level: int, blocks: NDArray[np.int64] | None) -> NDArray[np.float64]:
        values = self._levels[level] if blocks is None else self._levels[level].take(blocks, axis=0)
        return np.asarray(values.min(axis=1))

    def _digest_compiled(self, level: int, above: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        COMPILED[0].extremes(self._levels[level], above, rows, FAN_OUT**level, False)


def distinct(ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different entries of an ascending array."""
    first = np.empty(len(ordered), np.bool_)
    first[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
