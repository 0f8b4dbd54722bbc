"""Equal values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def occurrence(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each entry appeared before in `rows`: [5, 3, 5] -> [0, 0, 1]."""
    order = rows.argsort(kind="stable")
    ordered = rows[order]
    result = np.zeros(len(rows), np.int64)
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if not len(again):
        return result
    count = np.arange(len(again))
    runs = again - count  # the same for neighbors
    result[order[again]] = count - runs.searchsorted(runs) + 1
    return result


def all_the_same(values: NDArray[Any]) -> bool:
    """Whether all items, of which there is one at least, have the same bytes."""
    return values[:1].tobytes() * len(values) == values.tobytes()


def numbered(values: NDArray[Any]) -> NDArray[np.int64]:
    """0 for the first value and all equal ones, 1 for the next that is another, and so on: int64 (n,)."""
    _, first, which = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[which.reshape(-1)]
