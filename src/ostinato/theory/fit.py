"""What a run says about its workload: cost ratio, exponent of the variance, a limit on the correlation, with intervals.

Intervals are percentiles of a bootstrap over train steps. Steps of one run resemble their neighbors, so a run is cut
into blocks of consecutive steps, about n^(2/3) of them and at most `MOST_BLOCKS`, and whole blocks are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.theory.variance import Floats

LEVEL = 0.9
"""How much of the bootstrap's distribution an interval holds."""

RESAMPLES = 1000
MOST_BLOCKS = 200


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, and the interval from `low` to `high` that holds it with probability `LEVEL`, as far as steps tell."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AgeMoments:
    """Second moments of each train step by age: `ages` (k,) in train steps, one an age bucket; `weights` (n, k), how
    much was seen of it (tokens or rollouts, 0: nothing); `totals` (n, k), second moment times weight.
    """

    ages: Floats
    weights: Floats
    totals: Floats

    def seen(self) -> NDArray[np.bool_]:
        """Which ages were seen at all, (k,)."""
        return np.asarray(self.weights.sum(0) > 0)

    def mean(self) -> Floats:
        """The second moment of each age over the run, (k,); NaN where it was not seen."""
        weights = self.weights.sum(0)
        return np.asarray(np.divide(self.totals.sum(0), weights, out=np.full(len(weights), np.nan), where=weights > 0))


def fit_exponent(ages: Floats, second_moments: Floats, weights: Floats) -> Floats:
    """alpha of sigma^2(s) = c s^(2 alpha): least squares of log sigma^2 over log s, weighted; at least 0.

    `ages` (k,) above 0; `second_moments` and `weights` (..., k), one fit a row. A place with weight 0 is left out; NaN
    where fewer than two places are left. Raises `DataError` for an age of 0 or a moment that is not above 0.
    """
    if np.any(ages <= 0) or np.any((weights > 0) & ~(second_moments > 0)):
        raise DataError("a power law is fitted to ages above 0 and second moments above 0")
    x, w = np.log(ages), np.asarray(weights, np.float64)
    y = np.log(np.where(w > 0, second_moments, 1.0))
    total = w.sum(-1, keepdims=True)
    centered = x - np.divide((w * x).sum(-1, keepdims=True), total, out=np.zeros_like(total), where=total > 0)
    spread = (w * centered**2).sum(-1)
    usable = (np.count_nonzero(w, axis=-1) > 1) & (spread > 0)
    slope = np.divide((w * centered * y).sum(-1), spread, out=np.full(spread.shape, np.nan), where=usable)
    return np.asarray(np.maximum(slope / 2, 0.0))


def estimate_exponent(moments: AgeMoments, rng: np.random.Generator) -> Estimate:
    """alpha over all ages above 0, weighted by how much was seen of each.

    Raises `DataError` when fewer than two such ages were seen: one point has no slope.
    """
    use = moments.seen() & (moments.ages > 0)
    if np.count_nonzero(use) < 2:
        raise DataError(
            f"the exponent needs rollouts of at least two age buckets above 0, the run has {np.count_nonzero(use)}"
        )
    ages, k = moments.ages[use], int(np.count_nonzero(use))

    def alpha(sums: Floats) -> Floats:
        weights, totals = sums[..., :k], sums[..., k:]
        means = np.divide(totals, weights, out=np.ones_like(totals), where=weights > 0)
        return fit_exponent(ages, means, weights)

    return bootstrap(np.hstack([moments.weights[:, use], moments.totals[:, use]]), alpha, rng)


def estimate_mu(
    generate_s: Floats, generated: Floats, train_s: Floats, trained: Floats, rng: np.random.Generator
) -> Estimate:
    """Seconds a generated over seconds a trained rollout, each argument (n,): what a train step added to the counter.

    Raises `DataError` when nothing was generated or trained, or the clock did not move.
    """
    columns = np.column_stack([generate_s, generated, train_s, trained])
    if not len(columns) or not np.all(columns.sum(0) > 0):
        raise DataError(f"mu needs positive busy seconds and counts, got totals {columns.sum(0).tolist()}")

    def ratio(sums: Floats) -> Floats:
        top, bottom = sums[..., 0] * sums[..., 3], sums[..., 1] * sums[..., 2]
        return np.asarray(np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom > 0))

    return bootstrap(columns, ratio, rng)


def estimate_correlation_limit(
    fresh_square: Floats,
    dot: Floats,
    fresh: Floats,
    replayed: Floats,
    rollouts_per_step: float,
    rng: np.random.Generator,
) -> Estimate:
    """An upper limit on rho, from gradients of the fresh and the replayed part of each batch, arguments (n,).

        rho <= R D / sigma^2      D = sum dot / sum n_f n_r      sigma^2 = (sum |g_f|^2 - D sum n_f (n_f - 1)) / sum n_f

    g_f = sum of the gradients of the `fresh` = n_f rollouts, g_r of the `replayed` = n_r; `fresh_square` = |g_f|^2,
    `dot` = g_f . g_r. D is the mean inner product of the gradients of two rollouts: correlated noise plus the square of
    the true gradient, which a run cannot take apart. So this is a limit and not rho. Within [0, 1].
    Raises `DataError` when no batch held both kinds.
    """
    if not float((fresh * replayed).sum()) > 0:
        raise DataError("the correlation needs batches with fresh and with replayed rollouts")
    columns = np.column_stack([fresh_square, dot, fresh, fresh * replayed, fresh * (fresh - 1)])

    def limit(sums: Floats) -> Floats:
        square, product, n, pairs, own_pairs = np.moveaxis(sums, -1, 0)
        d = np.divide(product, pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)
        sigma2 = (square - d * own_pairs) / np.maximum(n, 1)
        return np.clip(np.where(sigma2 > 0, rollouts_per_step * d / np.where(sigma2 > 0, sigma2, 1), 1.0), 0, 1)

    return bootstrap(columns, limit, rng)


def bootstrap(
    columns: Floats, statistic: Callable[[Floats], Floats], rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Estimate:
    """`statistic` of the sums over train steps of `columns` (n, k), with a percentile interval.

    `statistic` maps (..., k) sums to (...,) values; resamples for which it is NaN are left out. Raises `DataError` when
    it is NaN for the run itself.
    """
    value = float(statistic(columns.sum(0)))
    if not np.isfinite(value):
        raise DataError("the run does not determine this number")
    count = max(min(round(len(columns) ** (2 / 3)), MOST_BLOCKS), 1)
    blocks = np.add.reduceat(columns, np.linspace(0, len(columns), count, endpoint=False).astype(np.int64), axis=0)
    times = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    values = statistic(times.astype(np.float64) @ blocks)
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, min(float(low), value), max(float(high), value))
