"""The correction for unequal probabilities: exponent, schedule and what the weights are divided by."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.draws import importance_weights
from ostinato.buffer.sampling.protocol import Rows
from ostinato.buffer.schedule import Schedule, bounded
from ostinato.setting_checks import check_choice

NORMALIZERS = ("buffer", "batch", None)


class Probabilities(Protocol):
    """What a correction asks of a law."""

    def probabilities(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """Probability of each of these live rows in one draw."""

    def least_drawable(self, columns: Columns) -> float:
        """The least probability above 0 of any live row."""


class Correction:
    """w = (N P) ** -beta for each drawn row, divided by the greatest such weight of the buffer, of the batch or by 1.

    N is the number of rollouts held. `beta` None: no weights at all, which trainers read as 1. `normalize`: "buffer"
    (arXiv 2604.16918, released code) lets one rollout of tiny probability make every other weight vanish; "batch" does
    not, but its weights depend on what else was drawn; None leaves them as they are.
    """

    def __init__(self, beta: float | Schedule | None, normalize: str | None) -> None:
        check_choice("normalize", normalize, NORMALIZERS)
        self.beta = None if beta is None else bounded("beta", beta, 0, 1)
        self.normalize = normalize

    def weights(self, law: Probabilities, columns: Columns, rows: Rows) -> NDArray[np.float64] | None:
        """Importance weights of the drawn rows, float64 (n,), or None."""
        if self.beta is None:
            return None
        probabilities, least = law.probabilities(columns, rows), None
        if self.normalize == "buffer" or not probabilities.all():
            # A batch without replacement may be filled with rows of probability 0: they count as the least likely.
            least = law.least_drawable(columns)
            probabilities = np.maximum(probabilities, least)
        normalizer = {"buffer": least, "batch": float(probabilities.min()), None: None}[self.normalize]
        return importance_weights(probabilities, len(columns), self.beta(columns.train_step), normalizer)
