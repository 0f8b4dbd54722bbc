"""What the latest train steps of a run say about its workload: cost ratio, variance by age, drift."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.stats.ages import age_names
from ostinato.stats.off_policy import checked_figures
from ostinato.theory import AgeMoments, Estimate, estimate_exponent, estimate_mu

Floats = NDArray[np.float64]

EDGES = (0, *(2**i for i in range(15)))
"""Lower ends of the ages, in train steps: each bucket is as wide as it is old, so a power law is straight in it."""

BY_AGE = ("tokens", "ratio_sum", "ratio_square_sum", "log_age")
"""Sums over the rollouts of an age: tokens, their ratios r = pi / mu, r^2, and log(age) times tokens."""

LEAST_MOMENT = 1e-12
"""A mean of squares is above 0; rounding may take it there."""


class Spent(NamedTuple):
    """Seconds of generating, rollouts generated, seconds of training, rollouts trained, since the run began."""

    generate_s: float
    generated: float
    train_s: float
    trained: float


NOTHING_SPENT = Spent(0.0, 0.0, 0.0, 0.0)


def spent_from(kept: Sequence[float]) -> Spent:
    """What was kept as a list. Raises `DataError` unless it is four finite numbers of at least 0."""
    try:
        spent = Spent(*map(float, kept))
    except (TypeError, ValueError) as error:
        raise DataError(f"counters of what was spent cannot be read: {error}") from None
    if not all(0 <= value < math.inf for value in spent):
        raise DataError(f"counters of what was spent must be finite and at least 0, got {list(spent)}")
    return spent


@dataclass(frozen=True, slots=True)
class Estimates:
    """Of `steps` train steps; None where they do not tell.

    `mu`, `alpha`: with intervals (`theory.fit`); sigma^2 of an age stands for E[r^2] over its tokens. `uses`: trained
    over generated rollouts. `drift`: nats a rollout and train step, least squares of -X over age through the origin.
    `ess`: age bucket -> effective sample fraction of its token ratios, (sum r)^2 / (n sum r^2); youngest first.
    """

    steps: int
    mu: Estimate | None
    alpha: Estimate | None
    uses: float | None
    drift: float | None
    ess: Mapping[str, float]

    def record(self) -> dict[str, Any]:
        """Plain values for metrics.jsonl."""
        named = {"mu": self.mu, "alpha": self.alpha}
        ends = {
            f"{name}{end}": None if estimate is None else getattr(estimate, end[1:] or "value")
            for name, estimate in named.items()
            for end in ("", "_low", "_high")
        }
        return {"steps": self.steps, **ends, "uses": self.uses, "drift": self.drift, "ess": dict(self.ess)}


class WorkloadWindow:
    """Sums of each of the latest `window` train steps. A window and no decay: what happened before it is gone."""

    def __init__(self, window: int) -> None:
        self._names = age_names(EDGES)
        self._width = len(Spent._fields) + 2 + len(BY_AGE) * len(EDGES)
        self._rows: deque[Floats] = deque(maxlen=window)

    def record(self, spent: Spent, figures: Mapping[str, Floats], staleness: NDArray[np.int64]) -> None:
        """Add a train step: what it added to the counters, and the figures of its batch as for `stats.diagnose`, empty
        where a trainer has none; `staleness` int64 (n,). Raises `DataError` for figures that cannot be used."""
        drift, by_age = np.zeros(2), np.zeros((len(BY_AGE), len(EDGES)))
        if figures:
            columns = checked_figures(figures, len(staleness))
            ages = staleness.astype(np.float64)
            drift = np.array([-(ages @ columns["log_ratio_sum"]), ages @ ages])
            sums = {name: columns[name] for name in BY_AGE[:-1]}
            sums["log_age"] = columns["tokens"] * np.log(np.maximum(ages, 1))
            place = np.searchsorted(EDGES, staleness, "right") - 1
            by_age = np.array([np.bincount(place, sums[name], len(EDGES)) for name in BY_AGE])
        self._rows.append(np.concatenate([spent, drift, by_age.ravel()]))

    def estimates(self, rng: np.random.Generator) -> Estimates:
        """What the window tells."""
        rows = np.array(self._rows).reshape(len(self._rows), self._width)
        head, by_age = rows[:, : len(Spent._fields)], rows[:, len(Spent._fields) + 2 :]
        _, generated, _, trained = head.sum(0).tolist()
        moved, squares = rows[:, len(Spent._fields) : len(Spent._fields) + 2].sum(0).tolist()
        columns = dict(zip(BY_AGE, by_age.reshape(len(rows), len(BY_AGE), len(EDGES)).swapaxes(0, 1), strict=True))
        return Estimates(
            steps=len(rows),
            mu=_mu(head, rng),
            alpha=_alpha(columns, rng),
            uses=trained / generated if generated > 0 and trained > 0 else None,
            drift=moved / squares if squares > 0 else None,
            ess=self._ess(columns),
        )

    def state(self) -> list[list[float]]:
        """Every row, JSON-able."""
        return [row.tolist() for row in self._rows]

    def load(self, rows: Sequence[Sequence[float]]) -> None:
        """Inverse of `state`. Raises `DataError` for too many rows, rows of another shape, or numbers that are
        not finite."""
        loaded = [np.array(row, np.float64) for row in rows]
        most = self._rows.maxlen or 0
        if len(loaded) > most or not all(row.shape == (self._width,) and np.isfinite(row).all() for row in loaded):
            raise DataError(
                f"the window of the buffer's control needs rows of {self._width} finite numbers, {most} at most"
            )
        self._rows.clear()
        self._rows.extend(loaded)

    def _ess(self, columns: Mapping[str, Floats]) -> dict[str, float]:
        tokens, ratio, square = (columns[name].sum(0) for name in BY_AGE[:-1])
        return {
            name: float(min(ratio[i] ** 2 / (tokens[i] * square[i]), 1.0))
            for i, name in enumerate(self._names)
            if tokens[i] > 0 and square[i] > 0
        }


def _mu(head: Floats, rng: np.random.Generator) -> Estimate | None:
    generate_s, generated, train_s, trained = head.T
    try:
        return estimate_mu(generate_s, generated, train_s, trained, rng)
    except DataError:
        return None


def _alpha(columns: Mapping[str, Floats], rng: np.random.Generator) -> Estimate | None:
    tokens = columns["tokens"]
    total = tokens.sum(0)
    ages = np.exp(np.divide(columns["log_age"].sum(0), total, out=np.zeros_like(total), where=total > 0))
    ages[0] = 0.0
    moments = np.maximum(columns["ratio_square_sum"], LEAST_MOMENT * tokens)
    try:
        return estimate_exponent(AgeMoments(ages, tokens, moments), rng)
    except DataError:
        return None
