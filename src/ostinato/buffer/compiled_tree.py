"""Compiled work on block trees, to the last bit what numpy does. Importing this module needs numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

FAN_OUT = 16

_F, _I = types.float64, types.int64
_LEVEL, _FLAT, _ROWS = types.Array(_F, 2, "C"), types.Array(_F, 1, "C"), types.Array(_I, 1, "A", readonly=True)
_VALUES, _NODES = types.Array(_F, 1, "A", readonly=True), types.Array(_I, 1, "C")
_compiled: Any = {"nogil": True, "cache": True}


@numba.njit(_I(_FLAT, _ROWS, _VALUES), **_compiled)
def write(leaves: Any, rows: Any, values: Any) -> int:
    """Set leaves, the last value where a row comes again; returns how many more of them are not 0 than before."""
    more = 0
    for i in range(len(rows)):
        more += int(values[i] != 0) - int(leaves[rows[i]] != 0)
        leaves[rows[i]] = values[i]
    return more


@numba.njit(types.void(_LEVEL, _LEVEL, _FLAT, _ROWS, _I), **_compiled)
def add_up(values: Any, running: Any, above: Any, rows: Any, span: int) -> None:
    """Running sums of the blocks in which rows stand, `span` rows an entry, and the sum of each in the level above."""
    last = -1
    for i in range(len(rows)):
        block = rows[i] // (span * FAN_OUT)
        if block == last:
            continue
        last, total = block, 0.0
        for j in range(FAN_OUT):
            total = values[block, j] if j == 0 else total + values[block, j]
            running[block, j] = total
        above[block] = total


@numba.njit(types.void(_LEVEL, _FLAT, _ROWS, _I, types.boolean), **_compiled)
def extremes(values: Any, above: Any, rows: Any, span: int, greatest: bool) -> None:
    """The least or the greatest value of each block in which rows stand, in the level above."""
    last = -1
    for i in range(len(rows)):
        block = rows[i] // (span * FAN_OUT)
        if block == last:
            continue
        last, found = block, values[block, 0]
        for j in range(1, FAN_OUT):
            value = values[block, j]
            found = max(found, value) if greatest else min(found, value)
        above[block] = found


@numba.njit(types.void(_LEVEL, _NODES, _FLAT), **_compiled)
def descend(running: Any, nodes: Any, left: Any) -> None:
    """From blocks to the entries in them whose running sum passes what is left of a mass, and what is left then."""
    for i in range(len(nodes)):
        sums, child = running[nodes[i]], 0
        mass = min(left[i], np.nextafter(sums[FAN_OUT - 1], 0.0))
        while child < FAN_OUT - 1 and not sums[child] > mass:
            child += 1
        left[i] = mass - (sums[child - 1] if child > 0 else 0.0)
        nodes[i] = nodes[i] * FAN_OUT + child


@numba.njit(types.void(_FLAT, _VALUES, _NODES, _FLAT), **_compiled)
def begin(root: Any, masses: Any, nodes: Any, left: Any) -> None:
    """Entries at the top whose running sum passes each mass, and what is left of it below them."""
    most = np.nextafter(root[len(root) - 1], 0.0)
    for i in range(len(masses)):
        left[i] = min(masses[i], most)
        nodes[i] = np.searchsorted(root, left[i], side="right")
        if nodes[i] > 0:
            left[i] -= root[nodes[i] - 1]
