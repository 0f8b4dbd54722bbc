"""A mixture of laws, with importance weights against the mixture itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.correction import Correction
from ostinato.buffer.sampling.plain import Uniform
from ostinato.buffer.sampling.protocol import Law, Picked, Rows, enough, new_priority_of, tell_changed, tell_rebuilt
from ostinato.buffer.schedule import Schedule, bounded
from ostinato.errors import ConfigError
from ostinato.setting_checks import shown


class Mixture:
    """q = share * q_1 + (1 - share) * q_2: each draw picks a part by its share, then a rollout by the part's law.

    Mixture((Prioritized(...), Uniform()), Linear(0, 0.5, steps=1000)) is the judge-guided draw of arXiv 2602.01915.
    `parts`: two or more of Uniform(), Prioritized(...) with replacement and without a beta, or mixtures. `shares`: of
    all parts but the last, which takes the rest; numbers or schedules in [0, 1].
    `beta`, `normalize`: the correction (`Correction`), whose weights are (N q) ** -beta. With a uniform part of share u
    every probability is at least u / N, so no weight exceeds u ** -beta before normalising.
    Raises `ConfigError` for parts without probabilities and shares that add up to more than 1.
    """

    repeats = True

    def __init__(
        self,
        parts: Sequence[Law],
        shares: float | Schedule | Sequence[float | Schedule],
        *,
        beta: float | Schedule | None = None,
        normalize: str | None = "buffer",
    ) -> None:
        if isinstance(parts, str) or not isinstance(parts, Sequence):
            raise ConfigError(f"parts of a mixture must be a sequence of samplers, got {shown(parts)}")
        self.parts = tuple(parts)
        given = tuple(shares) if isinstance(shares, (list, tuple)) else (shares,)
        if len(self.parts) < 2 or len(given) != len(self.parts) - 1:
            raise ConfigError(
                f"a mixture of {len(self.parts)} parts got {len(given)} shares, expected one fewer, from 1"
            )
        for part in self.parts:
            _check_part(part)
        self.shares = tuple(bounded("share of a mixture", share, 0, 1) for share in given)
        least = sum(getattr(share.schedule, "bounds", (0.0,))[0] for share in self.shares)
        if least > 1 + 1e-12:
            raise ConfigError(f"the shares of a mixture add up to {least:g}, expected at most 1")
        self._correction = Correction(beta, normalize)

    @property
    def corrects(self) -> bool:
        """Whether its batches carry importance weights."""
        return self._correction.beta is not None

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Picked:
        rows = self.draw(columns, enough(self, columns, n), rng)
        return Picked(rows, self._correction.weights(self, columns, rows))

    def draw(self, columns: Columns, n: int, rng: np.random.Generator) -> Rows:
        """n rows, repeats allowed, in random order."""
        counts = rng.multinomial(n, self._shares(columns))
        drawn = [part.draw(columns, int(k), rng) for part, k in zip(self.parts, counts, strict=True) if k]
        return rng.permutation(np.concatenate(drawn))

    def probabilities(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """Probability of each of these live rows in one draw, float64 (n,)."""
        result = np.zeros(len(rows))
        for part, share in zip(self.parts, self._shares(columns), strict=True):
            if share:
                result += share * part.probabilities(columns, rows)
        return result

    def least_probability(self, columns: Columns) -> float:
        """The least probability of any live row. O(1) beside one part that is not uniform, else one pass over all."""
        even, uneven = self._sorted(columns)
        if len(uneven) > 1:
            return float(self.probabilities(columns, columns.live()).min())
        return even + sum(share * part.least_probability(columns) for part, share in uneven)

    def least_drawable(self, columns: Columns) -> float:
        """The least probability above 0 of any live row."""
        even, uneven = self._sorted(columns)
        if even:
            return self.least_probability(columns)
        if len(uneven) == 1:
            return uneven[0][0].least_drawable(columns)
        every = self.probabilities(columns, columns.live())
        return float(every[every > 0].min())

    def new_priority(self, columns: Columns) -> float:
        """As the first part that has an opinion."""
        return new_priority_of(self.parts, columns)

    def rebuilt(self, columns: Columns) -> None:
        """Row numbers changed, or everything did."""
        for part in self.parts:
            tell_rebuilt(part, columns)

    def changed(self, columns: Columns, rows: Rows) -> None:
        """These rows were appended, removed, drawn or written."""
        for part in self.parts:
            tell_changed(part, columns, rows)

    def _sorted(self, columns: Columns) -> tuple[float, list[tuple[Law, float]]]:
        """What the uniform parts give every row, and the other parts with their shares."""
        pairs = [pair for pair in zip(self.parts, self._shares(columns), strict=True) if pair[1]]
        even = sum(share for part, share in pairs if isinstance(part, Uniform)) / len(columns)
        return even, [(part, share) for part, share in pairs if not isinstance(part, Uniform)]

    def _shares(self, columns: Columns) -> list[float]:
        shares = [share(columns.train_step) for share in self.shares]
        rest = 1 - sum(shares)
        if rest < -1e-12:
            raise ConfigError(f"the shares {shares} at train step {columns.train_step} add up to more than 1")
        return [*shares, max(0.0, rest)]


def _check_part(part: object) -> None:
    name = type(part).__name__
    if isinstance(part, type):
        raise ConfigError(f"a mixture holds the class {part.__name__}, expected an instance: {part.__name__}(...)")
    if not isinstance(part, Law):
        raise ConfigError(f"{name} has no probabilities, a mixture takes Uniform, Prioritized or Mixture")
    if not getattr(part, "repeats", True):
        raise ConfigError(f"{name} without replacement inside a mixture, expected with replacement")
    if getattr(part, "corrects", False):
        raise ConfigError(f"{name} inside a mixture has a beta: the correction belongs to the mixture")
