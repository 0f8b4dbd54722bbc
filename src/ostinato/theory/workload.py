"""The synchronous model: what a design with replay costs for the progress it makes.

Each step generates R rollouts, puts them in front of a FIFO of capacity N, draws B uniformly and takes one SGD step.
x = N / R is the staleness horizon (train steps that a rollout stays), y = B / R the uses of a rollout.

Source: arXiv 2604.08706, section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ostinato.errors import ConfigError
from ostinato.setting_checks import check_positive, check_share
from ostinato.theory.variance import Floats, VarianceLaw

LEAST_MU, MOST_MU = 1e-9, 1e12
"""The cost ratios that a recipe takes; beyond them floats run out in what is computed of them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A model on a task: `mu`, cost of generating a batch over training on it; `rho` in [0, 1], correlation of rollouts
    in the buffer; `variance` by age. Raises `ConfigError` for an impossible value.
    """

    mu: float
    rho: float
    variance: VarianceLaw

    def __post_init__(self) -> None:
        check_positive("mu", self.mu)
        if not LEAST_MU <= self.mu <= MOST_MU:
            raise ConfigError(f"mu must be within {LEAST_MU:g} and {MOST_MU:g}, got {self.mu}")
        check_share("rho", self.rho)

    def objective(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """J(x, y) = sbar2(x) (1 + y/mu) (1/y + 1/x + rho), x > 0 and y > 0: compute to a gradient norm, up to a factor
        that no design changes. sbar2 is the mean second moment over the buffer."""
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return np.asarray(self.variance.mean_second_moment(x) * (1 + y / self.mu) * (1 / y + 1 / x + self.rho))

    def best_uses(self, x: ArrayLike) -> Floats:
        """y*(x) = sqrt(mu / (rho + 1/x)), at most x: a batch must fit into the buffer, so B <= N."""
        x = np.asarray(x, np.float64)
        return np.asarray(np.minimum(np.sqrt(self.mu / (self.rho + 1 / x)), x))

    def objective_without_buffer(self) -> float:
        """J0 = sbar2(1) (1 + 1/mu) (1 + rho): each rollout once, at the best split W/T = mu."""
        return float(self.variance.mean_second_moment(1.0)) * (1 + 1 / self.mu) * (1 + self.rho)


@dataclass(frozen=True, slots=True)
class Problem:
    """The constants of theorem 4.4: `start_loss` F0 = F(theta_0) - inf F, `smoothness` L, `sensitivity` kappa (how much
    the bias of a stored rollout's gradient grows per unit of distance from the weights that made it)."""

    start_loss: float
    smoothness: float
    sensitivity: float


def gradient_bound(
    workload: Workload,
    problem: Problem,
    *,
    capacity: float,
    rollouts_per_step: float,
    batch_size: float,
    learning_rate: float,
    train_steps: float,
) -> float:
    """Bound on the mean squared gradient norm over a run.

        12 F0 / (eta T) + 8 eta (4 N^2 kappa^2 eta / R^2 + L) V        V = sbar2(N/R) (1/B + 1/N + rho/R)

    T is the number of train steps here. Raises `ConfigError` unless all are positive and
    eta <= min(R / (2 sqrt(2) kappa N), 1 / (2 L)), where the theorem holds (the paper's appendix prints L / 2).
    Source: arXiv 2604.08706, theorem 4.4.
    """
    n, r, b, eta, steps = capacity, rollouts_per_step, batch_size, learning_rate, train_steps
    f0, big_l, kappa = problem.start_loss, problem.smoothness, problem.sensitivity
    if not min(n, r, b, eta, steps, f0, big_l) > 0 or kappa < 0:
        raise ConfigError("the bound needs positive N, R, B, learning rate, train steps, F0 and L, and kappa >= 0")
    highest = 1 / (2 * big_l)
    if kappa > 0:
        highest = min(highest, r / (2 * math.sqrt(2) * kappa * n))
    if eta > highest:
        raise ConfigError(f"the bound holds for learning rates up to {highest:g}, got {eta:g}")
    v = float(workload.variance.mean_second_moment(n / r)) * (1 / b + 1 / n + workload.rho / r)
    return 12 * f0 / (eta * steps) + 8 * eta * (4 * (n * kappa / r) ** 2 * eta + big_l) * v
