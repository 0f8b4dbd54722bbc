"""How many samples a weighted batch is worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError

Floats = NDArray[np.float64]


def effective_sample_fraction(log_weights: Floats) -> float:
    """Kish's effective sample size over the number of samples, from natural logs of the weights, shape (n,).

        ESS / n = (sum_i w_i)^2 / (n sum_i w_i^2) = 1 / (1 + var(w) / mean(w)^2),      within [1/n, 1]

    The largest weight is divided out first, so no log-weight overflows and a common factor changes nothing. With
    w = pi / mu it tends to exp(-D_2(pi || mu)), at most exp(-KL(pi || mu)).
    Raises `DataError` without samples, or when a log-weight is not finite.
    Source: Kish 1965, Survey Sampling; as a diagnostic of stale rollouts: VCPO, arXiv 2602.17616.
    """
    if log_weights.ndim != 1 or not len(log_weights):
        raise DataError(f"log-weights have shape {log_weights.shape}, expected (n,) with n >= 1")
    if not np.isfinite(log_weights).all():
        row = int(np.flatnonzero(~np.isfinite(log_weights))[0])
        raise DataError(f"log-weight {log_weights[row]} of sample {row} is not finite")
    weights = np.exp(log_weights - log_weights.max())
    fraction = weights.sum() ** 2 / (len(weights) * np.square(weights).sum())
    return float(np.clip(fraction, 1 / len(weights), 1.0))
