"""Values that many rollouts share, stored once: prompts, images."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.arena import Arena
from ostinato.buffer.kernels import Kernels
from ostinato.buffer.repeats import all_the_same

COLUMN = "values"

LEAST_SHARED_BYTES = 64
"""Smaller values are shared inside one call only: to look for them would cost more than to store them again."""


class Blobs:
    """Rows of one column, equal ones stored once and counted. A row has `shape` items of `dtype` behind its length."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], kernels: Kernels) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape
        self._kernels = kernels
        self.arena = Arena({COLUMN: (dtype, shape)}, kernels)
        self.users = np.zeros(16, np.int64)
        """Rows that use each value, by handle."""
        self._keys = np.zeros(16, np.int64)  # by handle
        self._known: dict[int, int] = {}  # key to handle
        self.shared = 0
        """Rows that were found already there, since the beginning."""

    @property
    def live_bytes(self) -> int:
        """Bytes of the values held, each once."""
        return self.arena.live_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken; about 100 a value for finding it again."""
        return self.arena.allocated_bytes + self.users.nbytes + self._keys.nbytes + 100 * len(self._known)

    def put(
        self,
        values: NDArray[Any],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        together: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Copy or find n >= 1 rows of a C-contiguous array; returns their handles, int64 (n,), (1,): all the same.

        `together`: equal rows are stored once where this number is the same too.
        """
        n = len(starts)
        apart = together is not None and not all_the_same(together)
        if n > 1 and (apart or not self._kernels.all_equal(values, starts, lengths)):
            return self._put_various(
                values, starts, lengths, together if together is not None else np.zeros(n, np.int64)
            )
        return self.put_same(values, int(starts[0]), int(lengths[0]), n)

    def put_same(self, values: NDArray[Any], start: int, length: int, n: int) -> NDArray[np.int64]:
        """Copy or find one row of a C-contiguous array for n that use it; returns its handle, (1,)."""
        key, handle = self._find(self._content(values, start, length), length)
        handles = np.array([handle])
        if handle < 0:
            handles = self._store(values, np.array([start]), np.array([length]), [key])
        self.shared += n if handle >= 0 else n - 1
        self.users[handles[0]] += n
        return handles

    def candidate(self, values: NDArray[Any], length: int) -> int:
        """The handle of a value that may be what stands first in an array, so many items; -1: there is none."""
        return self._known.get(_key(self._content(values, 0, length), length), -1)

    def _put_various(
        self,
        values: NDArray[Any],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        together: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """`put` of rows that may be different."""
        found: dict[tuple[int, bytes, int], int] = {}  # values met in this call: place in `new`, or -1 - handle
        new: list[int] = []
        keys: list[int] = []
        places = []
        rows = zip(starts.tolist(), lengths.tolist(), together.tolist(), strict=True)
        for i, (start, length, number) in enumerate(rows):
            content = self._content(values, start, length)
            place = found.get((length, content, number))
            if place is None:
                key, handle = self._find(content, length)
                place = found[length, content, number] = -1 - handle if handle >= 0 else len(new)
                if handle < 0:
                    new.append(i)
                    keys.append(key)
            places.append(place)
        self.shared += len(places) - len(new)
        result = np.array(places, np.int64)
        old = result < 0
        if new:
            fresh = self._store(values, starts[new], lengths[new], keys)
            result[~old] = fresh[result[~old]]
        result[old] = -1 - result[old]
        np.add.at(self.users, result, 1)
        return result

    def _content(self, values: NDArray[Any], start: int, length: int) -> bytes:
        return values[start : start + length].tobytes()

    def _find(self, content: bytes, length: int) -> tuple[int, int]:
        """The key to store a value under, 0: none, and its handle, -1 when it is not there."""
        key = _key(content, length)
        handle = self._known.get(key, -1) if key else -1
        if handle < 0:
            return key, -1
        # Another value with the same key is stored, but never looked for.
        return 0, handle if self.arena.view(COLUMN, handle).tobytes() == content else -1

    def _store(
        self, values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], keys: list[int]
    ) -> NDArray[np.int64]:
        handles = self.arena.put({COLUMN: values}, starts, lengths)
        if len(self.users) < self.arena.spans.shape[1]:
            grown = np.zeros((2, self.arena.spans.shape[1]), np.int64)
            grown[:, : len(self.users)] = self.users, self._keys
            self.users, self._keys = grown
        self.users[handles], self._keys[handles] = 0, keys
        for key, handle in zip(keys, handles.tolist(), strict=True):
            if key and self._known.setdefault(key, handle) != handle:  # two values that came together share it
                self._keys[handle] = 0
        return handles

    def reserve(
        self, lengths: NDArray[np.int64], index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
        """Room for values of these lengths, row i using value `index[i]`: handles of the rows, and memory to fill.

        When it is filled, `register` makes the values known to rows that come later.
        """
        handles, memory = self.arena.reserve(lengths)
        if len(handles) > len(self.users):
            self.users, self._keys = (np.zeros(int(1.25 * len(handles)), np.int64) for _ in range(2))
        self.users[:] = 0
        np.add.at(self.users, handles[index], 1)
        return handles[index], memory[COLUMN]

    def register(self, handles: NDArray[np.int64]) -> None:
        """Find these values again when they come again."""
        used = np.unique(handles)
        for handle, length in zip(used.tolist(), self.arena.lengths(used).tolist(), strict=True):
            content = self.arena.view(COLUMN, handle).tobytes()
            key = _key(content, length)
            if key and key not in self._known:
                self._known[key] = handle
                self._keys[handle] = key

    def release(self, handles: NDArray[np.int64]) -> None:
        """One use less of each; values nobody uses any more leave. Negative handles mean nothing."""
        if not len(handles):
            return
        first = handles[0]
        if first >= 0 and all_the_same(handles):  # rows of one group leave together
            self.users[first] -= len(handles)
            gone = handles[: not self.users[first]]
        else:
            handles = handles[handles >= 0]
            np.subtract.at(self.users, handles, 1)
            gone = np.unique(handles[self.users[handles] == 0])
        if len(gone):
            self.forget(gone)

    def forget(self, handles: NDArray[np.int64]) -> None:
        """Let values go that nobody uses any more."""
        for key in self._keys[handles].tolist():
            if key:
                del self._known[key]
        self.arena.release(handles)


def _key(content: bytes, length: int) -> int:
    """What a value is looked for by, 0: not at all. Different values may share a key: contents are compared."""
    return zlib.crc32(content) + (length << 32) + 1 if len(content) >= LEAST_SHARED_BYTES else 0
