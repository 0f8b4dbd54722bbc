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
    same = ordered[1:] == ordered[:-1]
    if same.any():
        places = np.arange(len(rows))
        start = np.maximum.accumulate(np.where(np.concatenate([[True], ~same]), places, 0))
        result[order] = places - start
    return result


def all_the_same(values: NDArray[Any]) -> bool:
    """Whether all items, of which there is one at least, have the same bytes."""
    return values[:1].tobytes() * len(values) == values.tobytes()
