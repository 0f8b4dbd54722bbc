"""Samplers that need no index: uniform, newest first, oldest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows, enough
from ostinato.setting_checks import check_flag


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every rollout with equal probability, with or without replacement inside a batch (arXiv 2604.08706, section 2).

    Draws are independent of each other from batch to batch; `Epoch` is the one that visits all before any comes again.
    """

    replacement: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "replacement", check_flag("replacement", self.replacement))

    @property
    def repeats(self) -> bool:
        return self.replacement

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Rows:
        size = enough(self, columns, n)
        if self.replacement:
            return self.draw(columns, size, rng)
        return columns.select(rng.choice(len(columns), size=size, replace=False))

    def draw(self, columns: Columns, n: int, rng: np.random.Generator) -> Rows:
        """n rows, repeats allowed."""
        return columns.select(rng.integers(len(columns), size=n))

    def probabilities(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """1 / N for each row."""
        return np.full(len(rows), 1 / len(columns))

    def least_probability(self, columns: Columns) -> float:
        """1 / N."""
        return 1 / len(columns)

    def least_drawable(self, columns: Columns) -> float:
        """1 / N."""
        return 1 / len(columns)


@dataclass(frozen=True, slots=True)
class Newest:
    """The n newest rollouts, newest first: last in, first out."""

    @property
    def repeats(self) -> bool:
        return False

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Rows:
        size, held = enough(self, columns, n), len(columns)
        return columns.select(np.arange(held - 1, held - 1 - size, -1))


@dataclass(frozen=True, slots=True)
class Oldest:
    """The n oldest rollouts, oldest first: first in, first out."""

    @property
    def repeats(self) -> bool:
        return False

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Rows:
        return columns.select(np.arange(enough(self, columns, n)))
