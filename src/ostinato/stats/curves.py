"""Accuracy against compute: smoothing, the crossing of a target, the saving.

Every function treats all arms alike and works on any axis that grows with the run (compute units, seconds).
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from ostinato.errors import ConfigError, DataError

WINDOW = 5
"""Evaluations averaged to one point of a curve."""


def smoothed(values: ArrayLike, window: int = WINDOW) -> NDArray[np.float64]:
    """Means of `window` neighboring values, full windows only: shape (n,) to (n - window + 1,).

    A shorter window at the ends would be noisier there, so peaks and first crossings would be found there more often.
    Smooth the compute axis the same way: each point then sits at the mean compute of its window (its middle, when
    evaluations are evenly spaced) and a straight line stays the same line on any axis.
    Raises `ConfigError` when window < 1, `DataError` when there are fewer values than the window.
    """
    array = np.asarray(values, np.float64)
    if window < 1:
        raise ConfigError(f"expected window >= 1, got {window}")
    if len(array) < window:
        raise DataError(f"a curve needs at least {window} evaluations, got {len(array)}")
    means: NDArray[np.float64] = sliding_window_view(array, window).mean(axis=1)
    return means


def compute_to_target(compute: ArrayLike, accuracy: ArrayLike, target: float) -> float | None:
    """Compute at which a (smoothed) curve first reaches `target`, linear between points; None when it never does.

    A curve that starts at or above the target gives its first compute. Raises `DataError` when the two differ in
    length or compute falls.
    """
    x, y = np.asarray(compute, np.float64), np.asarray(accuracy, np.float64)
    if x.shape != y.shape or np.any(np.diff(x) < 0):
        raise DataError(f"a curve needs rising compute, one value an accuracy; got {len(x)} and {len(y)} points")
    above = np.flatnonzero(y >= target)
    if not len(above):
        return None
    i = above[0]
    return float(x[0] if i == 0 else np.interp(target, y[i - 1 : i + 1], x[i - 1 : i + 1]))


def saving(arm: float | None, baseline: float | None) -> float:
    """1 - compute(arm) / compute(baseline), the two computes to the same target; negative when the arm needs more.

    0 when either never reached it, or when the baseline was there at compute 0: nothing was saved.
    """
    if arm is None or not baseline:
        return 0.0
    return 1.0 - arm / baseline
