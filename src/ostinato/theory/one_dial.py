"""The best of one dial while another is held: of the capacity where uses are given, of the uses where it is."""

from __future__ import annotations

import math

import numpy as np

from ostinato.errors import ConfigError
from ostinato.setting_checks import check_positive
from ostinato.theory.optimum import least_at
from ostinato.theory.variance import PowerLaw
from ostinato.theory.workload import Workload


def best_horizon(workload: Workload, uses: float) -> float:
    """The x >= max(1, y) that minimizes J(x, y) for y = `uses` > 0: what a capacity N = x B / y is best at.

    For sigma = s^alpha it is x = (1/(2 alpha) - 1) / (1/y + rho), infinite where age costs nothing; else by search up
    to the law's `longest`. mu does not enter. Raises `ConfigError` where even that is shorter than y.
    """
    y, law = check_positive("uses", uses), workload.variance
    least = max(1.0, y)
    if isinstance(law, PowerLaw):
        x = (1 / (2 * law.alpha) - 1) / (1 / y + workload.rho) if law.alpha else math.inf
        return max(x, least)
    if law.longest < least:
        raise ConfigError(f"{y:g} uses a rollout reach beyond the measured ages, {law.longest:g} train steps")
    return least_at(lambda xs: workload.objective(xs, y), least, law.longest)


def best_uses_at(workload: Workload, batches: float) -> float:
    """The y >= 1/n that minimizes J(n y, y) for a capacity of n = `batches` >= 1 batches, N = n B, x = n y.

    For sigma = s^alpha it solves (1 + 2 alpha) (rho / mu) y^2 + 2 alpha (rho + c / mu) y = (1 - 2 alpha) c with
    c = 1 + 1/n; infinite where neither age nor likeness costs anything; else by search. Raises `ConfigError` for less
    than a batch.
    """
    n, law = check_positive("batches", batches), workload.variance
    if n < 1:
        raise ConfigError(f"a buffer holds at least one batch, got {n:g}")
    least = 1 / n
    if isinstance(law, PowerLaw):
        c = 1 + 1 / n
        square, half = (1 + 2 * law.alpha) * workload.rho / workload.mu, law.alpha * (workload.rho + c / workload.mu)
        target = max((1 - 2 * law.alpha) * c, 0.0)
        root = half + math.sqrt(half**2 + square * target)
        return max(target / root, least) if root else math.inf
    return least_at(lambda ys: workload.objective(np.minimum(n * ys, law.longest), ys), least, law.longest / n)
