"""The best staleness horizon and number of uses, when both may be any real number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ostinato.errors import ConfigError
from ostinato.theory.variance import Floats, PowerLaw
from ostinato.theory.workload import Workload

Boundary = Literal["", "on_policy", "whole_buffer", "keep_everything", "end_of_data"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """`staleness_horizon` x* = N / R, `uses_per_rollout` y* = B / R, their `objective` J, and the constraint that holds
    them (empty: none).

    `on_policy`: x = 1, keep nothing. `whole_buffer`: x = y, every batch is as large as the buffer. `keep_everything`:
    age costs nothing, x is infinite. `end_of_data`: x is the longest age that was measured.
    """

    staleness_horizon: float
    uses_per_rollout: float
    objective: float
    boundary: Boundary = ""


def optimum(workload: Workload) -> Optimum:
    """Minimize J(x, y) over x >= max(1, y): in closed form for a power law, else numerically.

    With K(x) = x^alpha (1/sqrt(mu) + sqrt(rho + 1/x)) and sigma = s^alpha, alpha < 1/2, the stationary point is

        y* = mu (1 - 2 alpha) / (alpha + sqrt(alpha^2 + mu rho (1 - 2 alpha)))        x* = y*^2 / (2 alpha (mu + y*))

    which are the paper's formulas written without their removable singularities at rho = 0 and rho = 1/mu. Where a
    batch would not fit (x* < y*), the best point of the edge x = y solves
    rho (1 + 2 alpha) x^2 + 2 alpha (2 + rho mu) x = 2 mu (1 - 2 alpha). For alpha >= 1/2 the best x is 1.
    Source: arXiv 2604.08706, section 4; the edges are ours.
    """
    law = workload.variance
    if isinstance(law, PowerLaw):
        return _power_law(workload, law.alpha)
    return minimize(workload)


def minimize(workload: Workload, *, longest: float | None = None) -> Optimum:
    """The same by search, for any variance that does not fall with age, up to x = `longest`.

    A grid of log x is refined around its best point until neighbors agree to 1e-12; local minima closer together than
    a 4000th of the range may be missed. `longest`: the law's own when None. Raises `ConfigError` where that is
    infinite or below 1.
    """
    longest = workload.variance.longest if longest is None else longest
    if not 1 <= longest < math.inf:
        raise ConfigError(f"the search needs a longest staleness horizon of at least 1 train step, got {longest}")
    best = least_at(lambda xs: workload.objective(xs, workload.best_uses(xs)), 1.0, longest)
    return _at(workload, best, longest)


def least_at(charge: Callable[[Floats], Floats], least: float, most: float) -> float:
    """Where `charge`, asked for (n,) values at once, is least between `least` > 0 and `most`; see `minimize`."""
    low, high = math.log(least), math.log(most)
    points = 4000
    while True:
        logs = np.linspace(low, high, points)
        xs = np.clip(np.exp(logs), least, most)
        best = int(np.argmin(charge(xs)))
        if high - low < 1e-12:
            return float(xs[best])
        low, high = float(logs[max(best - 1, 0)]), float(logs[min(best + 1, points - 1)])
        points = 40


def _power_law(workload: Workload, alpha: float) -> Optimum:
    mu, rho = workload.mu, workload.rho
    if alpha >= 0.5:
        return _at(workload, 1.0)
    root = alpha + math.sqrt(alpha**2 + mu * rho * (1 - 2 * alpha))
    y = mu * (1 - 2 * alpha) / root if root else math.inf
    x = y / (2 * alpha) / (1 + mu / y) if alpha and math.isfinite(y) else math.inf
    if not math.isfinite(x):  # alpha is 0, or so small that the best age is no float: then x^(2 alpha) is 1
        j = float(workload.variance.mean_second_moment(1.0)) * (
            (1 + y / mu) * (1 / y + rho) if math.isfinite(y) else 1 / mu
        )
        return Optimum(math.inf, y, j, "keep_everything")
    if x < y:
        # The optimum lies on the edge x = y, or where that ends.
        half, target = alpha * (2 + rho * mu), 2 * mu * (1 - 2 * alpha)
        x = target / (half + math.sqrt(half**2 + rho * (1 + 2 * alpha) * target))
    return _at(workload, max(x, 1.0))


def _at(workload: Workload, x: float, longest: float = math.inf) -> Optimum:
    y = float(workload.best_uses(x))
    boundary: Boundary = ""
    if x == 1:
        boundary = "on_policy"
    elif y == x:
        boundary = "whole_buffer"
    elif x >= longest * (1 - 1e-12):
        boundary = "end_of_data"
    return Optimum(x, y, float(workload.objective(x, y)), boundary)
