"""What a rollout is drawn by, when a sampler draws by priority.

    reward       |reward|                                        stored
    advantage    |advantage|, the one frozen at generation       stored
    log_ratio    mean of |log pi - log mu| over its tokens       known after a train step
    kl           mean of r - 1 - log r, r = pi / mu: nats        known after a train step
    entropy      mean entropy of pi over its tokens, nats        known after a train step

A column of the store is read where it lies. Anything else is written back by rollout id after each train step, for the
rollouts of its batch; until then a rollout has the largest priority that is held, so that each is trained on soon. The
numbers are of the policy before the step. A rollout without tokens has priority 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.protocols import Draw, Trained

COLUMNS = ("reward", "advantage")
"""Priorities that are columns of a store."""

SUMS = {"log_ratio": "log_ratio_abs_sum", "kl": "kl_sum", "entropy": "entropy_sum"}
"""Priorities that are means over tokens, and the figures they are made of."""


def priorities_of(name: str, draw: Draw, trained: Trained) -> NDArray[np.float64]:
    """Priority `name` of each drawn rollout, at least 0: float64 (n,). Raises `DataError` when a trainer tells nothing.

    A mean of r - 1 - log r may be a rounding error below 0.
    """
    if name in COLUMNS:
        column: NDArray[np.float64] = getattr(draw.rollouts, name)
        return np.abs(column)
    missing = [figure for figure in (SUMS[name], "tokens") if figure not in trained.figures]
    if missing:
        raise DataError(f"priority {name!r} needs the figure {missing[0]!r}, got {sorted(trained.figures)}")
    mean: NDArray[np.float64] = trained.figures[SUMS[name]] / np.maximum(trained.figures["tokens"], 1)
    return np.maximum(mean, 0.0)
