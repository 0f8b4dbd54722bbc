"""What an `Arena` computes about its spans and slabs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


def new_spans(n: int) -> Int:
    """Room for n handles, int64 (4, n), each in half a cache line; all are free."""
    return np.full((4, n), -1, np.int64, order="F")


def covered(slabs: Int, places: Int, lengths: Int) -> list[tuple[int, int, int]]:
    """Slab, begin and end of each stretch that spans cover which lie one after the other."""
    filled = np.flatnonzero(lengths)
    slabs, places, ends = slabs[filled], places[filled], (places + lengths)[filled]
    cuts = [0, *(np.flatnonzero(np.diff(slabs)) + 1).tolist(), len(filled)]
    return [(int(slabs[a]), int(places[a]), int(ends[b - 1])) for a, b in pairwise(cuts) if a < b]


def sums_by_slab(slabs: Int, lengths: Int) -> Iterator[tuple[int, int]]:
    """Each slab that occurs, and the sum of its lengths."""
    order = slabs.argsort(kind="stable")
    ordered, ends = slabs[order], lengths[order].cumsum()
    cuts = [*np.flatnonzero(np.diff(ordered)).tolist(), len(slabs) - 1]
    before = 0
    for cut in cuts:
        yield int(ordered[cut]), int(ends[cut]) - before
        before = int(ends[cut])


def worst_slab(used: Int, alive: Int, touched: Int, clock: int, open_slabs: list[int], *, hard: bool) -> int | None:
    """The closed slab to empty: the emptiest, or, while it may wait, the one whose holes have stopped growing.

    `used`, `alive`: items of each slab, holes included or not; `touched`: the `clock` when one left last.
    """
    share = alive / np.maximum(used, 1)
    share[open_slabs] = 1
    age = 1 if hard else clock - touched
    gain = np.where((used == 0) | (share > 0.97), -1.0, age * (1 - share) / (1 + share))
    best = int(gain.argmax())
    return best if gain[best] > 0 else None
