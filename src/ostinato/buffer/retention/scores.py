"""Scores that a function of the user gives, checked before anything is done with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.retention.arrivals import Rows
from ostinato.errors import DataError

Score = Callable[[Columns, Rows], NDArray[np.float64]]
"""A number for each given row: float64 (len(rows),)."""


def scores_of(function: Score, columns: Columns, rows: Rows, *, role: str) -> NDArray[np.float64]:
    """What the function gives for these rows, float64 (len(rows),).

    Raises `DataError` that names it by `role` when it raises, gives another shape, no numbers, or NaN.
    """
    if not len(rows):
        return np.empty(0)
    name = f"{role} {getattr(function, '__name__', type(function).__name__)}"
    try:
        scores = np.asarray(function(columns, rows))
    except Exception as error:
        raise DataError(f"{name} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    if scores.shape != (len(rows),) or scores.dtype.kind not in "biuf":
        raise DataError(f"{name} gives {scores.dtype} {scores.shape} for {len(rows)} rows, expected numbers")
    bad = np.flatnonzero(np.isnan(scores))
    if len(bad):
        raise DataError(f"{name} gives NaN for rollout {int(columns['rollout_id'][rows[bad[0]]])}")
    return scores.astype(np.float64)
