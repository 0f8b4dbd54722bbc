"""Spans of items in slabs: where the payload of rollouts lies.

New spans go to the end of an open slab. A slab whose spans have all left is free again; a slab with holes is emptied
by moving its survivors to a second open slab, so that the long-lived stand together and leave together. Memory stays
within a few percent of what is alive when spans leave in the order they came, or when the survivors do (positive-bias
retention), and within a quarter of it when they leave in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.kernels import Blocks, Columns, Kernels, item_bytes
from ostinato.buffer.slabs import covered, new_spans, sums_by_slab, worst_slab

SLABS = 128
"""Slabs aimed at: what stands empty at the ends of open ones is about 1/128 of the whole."""

LEAST_SLAB_BYTES, LARGEST_SLAB_BYTES = 1 << 14, 1 << 25

SOFT, HARD = 0.02, 0.18
"""Holes, as a share of what is alive, at which slabs are emptied: while it is cheap, and whatever it costs."""

COPIES = 2
"""Items moved at most for each new one while it is the soft bound that is exceeded."""


Incoming = tuple[NDArray[np.int64], Columns, NDArray[np.int64], NDArray[np.int64]]
"""Handles of spans, C-contiguous arrays, where in them each span begins, and how long it is."""


class Arena:
    """Equally long spans in one or two parallel columns, by handle. `columns`: name to dtype and shape of one item."""

    def __init__(self, columns: Mapping[str, tuple[Any, tuple[int, ...]]], kernels: Kernels) -> None:
        self._columns = {name: (np.dtype(dtype), shape) for name, (dtype, shape) in columns.items()}
        self._kernels = kernels
        self.blocks = {name: Blocks(item_bytes(*column)) for name, column in self._columns.items()}
        self.item_bytes = sum(blocks.item_bytes for blocks in self.blocks.values())
        self.spans = new_spans(16)  # slab, start, length by handle; slab -1: free
        self._free: list[NDArray[np.int64]] = []
        self._handles = 0
        self._size, self._used, self._alive, self._touched = (list[int]() for _ in range(4))  # items, clock, by slab
        self._open = [-1, -1]  # of the new, of the survivors
        self._spare: list[int] = []
        self._clock = 0  # items ever put
        self._budget = 0  # items that may still be moved while it is cheap
        self._largest = 0  # items of the largest slab made so far
        self.live_items = 0
        self._used_items = 0  # with holes
        self._held_items = 0  # with what stands empty behind
        self._expected = 0  # items of spans that are to come all at once

    @property
    def live_bytes(self) -> int:
        """Bytes of the spans held."""
        return self.live_items * self.item_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken, the table of spans included."""
        return self._held_items * self.item_bytes + self.spans.nbytes + sum(free.nbytes for free in self._free)

    def column(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and item shape of a column."""
        return self._columns[name]

    def lengths(self, handles: NDArray[np.int64]) -> NDArray[np.int64]:
        """Items of each span."""
        lengths: NDArray[np.int64] = self.spans[2, handles]
        return lengths

    @property
    def gap(self) -> tuple[int, int, int]:
        """The open slab, the place in it where the next span goes, and the room behind it; -1, 0, -1: none is open."""
        slab = self._open[0]
        return (slab, self._used[slab], self._size[slab] - self._used[slab]) if slab >= 0 else (-1, 0, -1)

    def put(self, sources: Columns, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy n spans of C-contiguous arrays in; returns their handles, int64 (n,)."""
        handles = self.new_handles(len(lengths))
        items = -1
        if self._open[0] >= 0:
            items = self._kernels.enter(self, handles, sources, starts, lengths, *self.gap)
        self.filled(max(items, 0), (handles, sources, starts, lengths) if items < 0 else None)
        return handles

    def filled(self, items: int, rest: Incoming | None = None) -> None:
        """Items have come to the open slab, where the gap was; the rest, if any, is to be put behind them."""
        if items:
            self._fill(self._open[0], items)
        if rest is not None:
            handles, sources, starts, lengths = rest
            items += self._place_new(handles, lengths)
            for name in self.blocks:
                self._kernels.put(self, name, handles, sources[name], starts)
        self._count(items)
        self._tidy()

    def reserve(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], dict[str, list[NDArray[Any]]]]:
        """Room for n spans one after the other: their handles, and by column the memory that the caller fills."""
        handles = self.new_handles(len(lengths))
        self._expected = int(lengths.sum())
        self._count(self._place_new(handles, lengths))
        self._expected = 0
        stretches = covered(*self.spans[:3, handles])
        arrays: dict[str, Any] = {name: blocks.arrays for name, blocks in self.blocks.items()}
        return handles, {name: [own[slab][a:b] for slab, a, b in stretches] for name, own in arrays.items()}

    def copy_out(self, name: str, handles: NDArray[np.int64], out: NDArray[Any], starts: NDArray[np.int64]) -> None:
        """Copy column `name` of the spans to `out[starts[i]:...]`, ascending."""
        self._kernels.get(out, starts, self, name, handles)

    def view(self, name: str, handle: int) -> NDArray[Any]:
        """Column `name` of one span, in place: valid until the next change."""
        slab, start, length = self.spans[:3, handle].tolist()
        if not length:
            return np.empty((0, *self._columns[name][1]), self._columns[name][0])
        array: Any = self.blocks[name].arrays[slab]
        return array[start : start + length]  # type: ignore[no-any-return]

    def release(self, handles: NDArray[np.int64]) -> None:
        """Let spans go, each named once; negative handles mean nothing."""
        if not len(handles):
            return
        slab, total = self._kernels.leave(self, handles)
        if slab >= 0:  # neighbors leave together
            self.unused(handles)
            self.thin(slab, total)
            return
        handles = handles[handles >= 0]
        if not len(handles):
            return
        self._free.append(handles)
        slabs, _, lengths = self.spans[:3, handles]
        self.spans[0, handles] = -1
        for slab, length in sums_by_slab(slabs, lengths):
            self.thin(slab, length)

    def unused(self, handles: NDArray[np.int64]) -> None:
        """Handles that have no span may be given to others."""
        if len(handles):
            self._free.append(handles)

    def thin(self, slab: int, items: int) -> None:
        """Items of a slab have left."""
        self._alive[slab] -= items
        self.live_items -= items
        self._touched[slab] = self._clock
        if not self._alive[slab]:
            self._drop(slab)

    def new_handles(self, n: int) -> NDArray[np.int64]:
        """Handles for n new spans."""
        parts, wanted = [], n
        while wanted and self._free:
            last = self._free.pop()
            parts.append(last[:wanted])
            if len(last) > wanted:
                self._free.append(last[wanted:])
            wanted -= len(parts[-1])
        if wanted:
            if self._handles + wanted > self.spans.shape[1]:
                grown = new_spans(int(1.25 * (self._handles + wanted)))
                grown[:, : self._handles] = self.spans[:, : self._handles]
                self.spans = grown
            parts.append(np.arange(self._handles, self._handles + wanted))
            self._handles += wanted
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    # ---------------------------------------------------------------- slabs

    def _place_new(self, handles: NDArray[np.int64], lengths: NDArray[np.int64]) -> int:
        """Note where new spans go, in as many slabs as it takes; returns their items."""
        self.spans[0, handles], self.spans[1, handles] = self._place(lengths, 0)
        self.spans[2, handles] = lengths
        return int(lengths.sum())

    def _count(self, items: int) -> None:
        """Items have come."""
        self.live_items += items
        self._clock += items
        self._budget += COPIES * items

    def _fill(self, slab: int, items: int) -> None:
        """Items stand in a slab now."""
        self._used[slab] += items
        self._alive[slab] += items
        self._used_items += items

    def _place(self, lengths: NDArray[np.int64], kind: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Slabs and starts for spans of these lengths, in open slabs of this kind (0 new, 1 survivors)."""
        ends = lengths.cumsum()
        slabs, places = np.empty(len(lengths), np.int64), ends - lengths
        done = base = 0
        while done < len(lengths):
            slab = self._open[kind]
            room = self._size[slab] - self._used[slab] if slab >= 0 else -1
            fits = int(ends.searchsorted(base + room, "right"))
            if slab < 0 or fits <= done:
                self._open_slab(kind, at_least=int(lengths[done]))
                continue
            taken = int(ends[fits - 1]) - base
            slabs[done:fits] = slab
            places[done:fits] += self._used[slab] - base
            self._fill(slab, taken)
            done, base = fits, base + taken
        return slabs, places

    def _open_slab(self, kind: int, at_least: int) -> None:
        closed = self._open[kind]
        if closed >= 0 and self._alive[closed] == 0:
            self._open[kind] = -1
            self._drop(closed)
        aim = min(
            max(max(self._held_items, self._expected) * self.item_bytes // SLABS, LEAST_SLAB_BYTES), LARGEST_SLAB_BYTES
        )
        wanted = max(at_least, aim // max(self.item_bytes, 1), 1)
        for slab in self._spare:
            if max(at_least, 3 * wanted // 4) <= self._size[slab] <= 2 * wanted:  # memory that is mapped already
                self._spare.remove(slab)
                break
        else:
            slab = self._new_slab(wanted)
        self._open[kind] = slab
        self._touched[slab] = self._clock

    def _new_slab(self, items: int) -> int:
        for spare in self._spare:  # of another size than is wanted now
            self._unmap(spare)
        self._spare = []
        if 0 not in self._size:
            for by_slab in (
                self._used,
                self._alive,
                self._touched,
                self._size,
            ):  # the size last: a Ctrl-C may fall here
                by_slab.append(0)
        slab = self._size.index(0)
        for name, (dtype, shape) in self._columns.items():
            self.blocks[name].put(slab, np.empty((items, *shape), dtype))
        self._size[slab], self._used[slab], self._alive[slab] = items, 0, 0
        self._held_items += items
        self._largest = max(self._largest, items)
        return slab

    def _drop(self, slab: int) -> None:
        """An empty slab: begin anew when it is open, keep one spare, give the rest back."""
        if slab in self._spare or not self._size[slab]:  # spans of no items may outlive their slab
            return
        self._used_items -= self._used[slab]
        self._used[slab] = 0
        if slab in self._open:
            return
        if not self._spare:
            self._spare.append(slab)
        else:
            self._unmap(slab)

    def _unmap(self, slab: int) -> None:
        self._held_items -= self._size[slab]
        self._size[slab] = 0
        for blocks in self.blocks.values():
            blocks.put(slab, None)

    # ---------------------------------------------------------------- holes

    def _tidy(self) -> None:
        """Empty slabs with holes while there are too many, not counting those of the slab that is leaving."""
        while (holes := self._used_items - self.live_items - self._largest) > SOFT * self.live_items:
            self._budget = min(self._budget, 2 * self._largest)
            hard = holes > HARD * self.live_items
            slab = self._worst(hard=hard)
            if slab is None or (not hard and self._alive[slab] > self._budget):
                return
            self._budget = max(0, self._budget - self._alive[slab])
            self._empty(slab)

    def _worst(self, *, hard: bool) -> int | None:
        """The closed slab to empty: the emptiest, or, while it may wait, the one whose holes have stopped growing."""
        used, alive, touched = (np.array(by_slab, np.int64) for by_slab in (self._used, self._alive, self._touched))
        open_slabs = [slab for slab in self._open if slab >= 0]
        return worst_slab(used, alive, touched, self._clock, open_slabs, hard=hard)

    def _empty(self, slab: int) -> None:
        handles = np.flatnonzero(self.spans[0, : self._handles] == slab)
        order = np.argsort(self.spans[1, handles], kind="stable")
        handles = handles[order]
        of_slab, of_start, lengths = self.spans[:3, handles]
        slabs, places = self._place(lengths, 1)
        for blocks in self.blocks.values():
            self._kernels.copy(blocks, slabs, places, blocks, of_slab, of_start, lengths)
        self.spans[0, handles], self.spans[1, handles] = slabs, places
        self._alive[slab] = 0
        self._drop(slab)
