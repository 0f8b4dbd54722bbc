"""Samplers: which rows next? Each takes read-only columns, a count and a generator and returns row numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns


class Sampler(Protocol):
    """Chooses rows; never changes anything."""

    def __call__(self, columns: Columns, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """n row numbers, 0 the oldest."""

    @property
    def repeats(self) -> bool:
        """Whether one batch may hold a row twice, so that fewer than n rows suffice."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every row with equal probability, with or without replacement inside a batch (arXiv 2604.08706, section 2)."""

    replacement: bool = True

    @property
    def repeats(self) -> bool:
        return self.replacement

    def __call__(self, columns: Columns, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if self.replacement:
            return rng.integers(len(columns), size=n)
        return rng.choice(len(columns), size=n, replace=False)


@dataclass(frozen=True, slots=True)
class Newest:
    """The n newest rows, newest first: last in, first out."""

    @property
    def repeats(self) -> bool:
        return False

    def __call__(self, columns: Columns, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(len(columns) - 1, len(columns) - 1 - n, -1)


@dataclass(frozen=True, slots=True)
class Oldest:
    """The n oldest rows, oldest first: first in, first out."""

    @property
    def repeats(self) -> bool:
        return False

    def __call__(self, columns: Columns, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(n)
