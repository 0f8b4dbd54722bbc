"""Rollouts by age, and what a run has learned about each age."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError

AGE_EDGES = (0, 1, 4, 16, 64)
"""Lower ends, in train steps, of the age buckets: 0, 1 to 3, 4 to 15, 16 to 63, 64 and more."""


def age_buckets(staleness: NDArray[np.int64], edges: Sequence[int] = AGE_EDGES) -> dict[str, NDArray[np.int64]]:
    """Name -> rows of each age bucket that occurs, youngest first: `age_0`, `age_1_3`, ..., `age_64_up`.

    `staleness` int64 (n,) in train steps. Bucket i holds ages from edges[i] to edges[i + 1] - 1, the last is open.
    Raises `ConfigError` unless the edges rise from 0, `DataError` for a negative age.
    """
    names = age_names(edges)
    if len(staleness) and staleness.min() < 0:
        row = int(staleness.argmin())
        raise DataError(f"staleness of rollout {row} is {staleness[row]}, expected at least 0")
    place = np.searchsorted(np.asarray(edges), staleness, "right") - 1
    rows = {name: np.flatnonzero(place == i) for i, name in enumerate(names)}
    return {name: found for name, found in rows.items() if len(found)}


def age_names(edges: Sequence[int]) -> tuple[str, ...]:
    """The name of each bucket. Raises `ConfigError` unless the edges rise from 0."""
    if not len(edges) or edges[0] != 0 or any(low >= high for low, high in pairwise(edges)):
        raise ConfigError(f"age edges must rise from 0, got {tuple(edges)}")
    ends = [str(high - 1) for high in edges[1:]] + ["up"]
    return tuple(f"age_{low}" if str(low) == end else f"age_{low}_{end}" for low, end in zip(edges, ends, strict=True))
