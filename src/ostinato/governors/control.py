"""Keeps capacity and samples per insert of a live buffer at their optimum while the workload moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.config.bounds import Bounds
from ostinato.errors import DataError
from ostinato.governors.estimates import NOTHING_SPENT, Estimates, Spent, WorkloadWindow, spent_from
from ostinato.theory import PowerLaw, Workload, best_horizon, best_uses_at, optimum
from ostinato.theory.variance import ASSUMED_ALPHA, MOST_ALPHA
from ostinato.theory.workload import LEAST_MU, MOST_MU

CONTROL_STREAM = 31
"""First entry of the seeds of the bootstrap; the second is the train step."""


LEAST_HORIZON = 4.0
"""Train steps that a rollout stays at least where the capacity is turned: with fewer ages in the buffer their law could
not be told any more, and it would stay small for ever."""


@dataclass(frozen=True, slots=True)
class Dials:
    """`capacity` N; `samples_per_insert` y, None where the buffer runs free."""

    capacity: int
    samples_per_insert: float | None = None


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """`capacity` and `samples_per_insert` that are set; `turns_capacity`, `turns_uses`: they are turned instead.

    `every`: train steps between two looks; `window`: train steps that estimates are made of; `rho`: correlation of
    rollouts, which a run cannot tell; `step`: largest relative change at once; `hysteresis`: relative distance up to
    which nothing changes; `longest`: train steps that a rollout may stay at most. `mu` and `uses`: what is assumed at
    the start; `uses` is for a buffer that runs free, mu T / W.
    """

    batch_size: int
    bounds: Bounds
    mu: float
    uses: float = 1.0
    capacity: int = 0
    samples_per_insert: float | None = None
    turns_capacity: bool = False
    turns_uses: bool = False
    every: int = 20
    window: int = 100
    rho: float = 0.2
    step: float = 0.25
    hysteresis: float = 0.15
    longest: float = math.inf


@dataclass(frozen=True, slots=True)
class Change:
    """One turn of the dials: from `before` to `after` because the optimum under `estimates` is at `target`."""

    train_step: int
    before: Dials
    after: Dials
    target: Dials
    reason: str
    estimates: Estimates

    def record(self) -> dict[str, Any]:
        """Plain values for metrics.jsonl."""
        return {
            "train_step": self.train_step,
            **{f"{when}_{name}": value for when in ("before", "after", "target") for name, value in self._dials(when)},
            "reason": self.reason,
            **self.estimates.record(),
        }

    def _dials(self, when: str) -> list[tuple[str, Any]]:
        return list(asdict(getattr(self, when)).items())


class BufferControl:
    """Estimates the workload and says how large the buffer shall be, and how often a rollout used.

        capacity alone             N = x B / y, x the best horizon at the uses y that the run has, or that are set
        samples_per_insert alone   the best y at the capacity that is set
        both                       (x*, y*) of `theory.optimum`, N = x* B / y*

    under sigma(age) = age^alpha, every number re-estimated (`WorkloadWindow`), rho assumed. It looks every `every`
    train steps. The optima of the estimates' interval ends are what the optimum may be. A dial that is further than
    `hysteresis` from all of that moves to the nearest of it, by `step` at most, within the bounds, and the capacity
    never below a horizon of 4 unless `longest` is shorter. Until alpha is measured nothing moves. The caller turns the
    dials.
    Source: arXiv 2604.08706, section 4 (the optimum); the control is ours.
    """

    def __init__(self, settings: ControlSettings) -> None:
        self.settings = settings
        self._window = WorkloadWindow(settings.window)
        self._totals = NOTHING_SPENT
        self._looked = 0
        self._told: dict[str, float] = {}
        assumed = Workload(settings.mu, settings.rho, PowerLaw(ASSUMED_ALPHA))
        self.dials = self._best(assumed, settings.samples_per_insert or settings.uses)

    def act(
        self, train_step: int, totals: Spent, figures: Mapping[str, NDArray[np.float64]], staleness: NDArray[np.int64]
    ) -> Change | None:
        """Take in a train step; what changes, if anything, is in force in `dials`.

        `totals`: counters since the run began. `figures` as for `stats.diagnose`, empty where a trainer has none;
        `staleness` int64 (n,). Raises `DataError` for figures that cannot be used.
        """
        settings = self.settings
        self._window.record(Spent(*np.subtract(totals, self._totals)), figures, staleness)
        self._totals = totals
        if train_step - self._looked < settings.every:
            return None
        self._looked = train_step
        found = self._window.estimates(np.random.default_rng([CONTROL_STREAM, train_step]))
        self._told = {f"control.{name}": value for name, value in _numbers(found).items() if value is not None}
        if found.alpha is None:
            return None
        target, lowest, highest = self._targets(found)
        self._told |= {f"control.target_{name}": float(v) for name, v in asdict(target).items() if v is not None}
        moved: dict[str, Any] = {}
        reasons: list[str] = []
        for name, turned in (("capacity", settings.turns_capacity), ("samples_per_insert", settings.turns_uses)):
            current, best, *ends = (getattr(dials, name) for dials in (self.dials, target, lowest, highest))
            if turned and (turn := self._moved(name, current, best, *ends)):
                moved[name] = turn[0]
                reasons.append(turn[1])
        if not moved:
            return None
        before, self.dials = self.dials, replace(self.dials, **moved)
        return Change(train_step, before, self.dials, target, "; ".join(reasons), found)

    def metrics(self) -> dict[str, float]:
        """`buffer_capacity`, `samples_per_insert` where there is one, and the latest estimates as `control.*`."""
        now = {"buffer_capacity": float(self.dials.capacity)}
        if self.dials.samples_per_insert is not None:
            now["samples_per_insert"] = self.dials.samples_per_insert
        return now | self._told

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, JSON-able."""
        return {
            "dials": asdict(self.dials),
            "looked": self._looked,
            "totals": list(self._totals),
            "told": dict(self._told),
            "window": self._window.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises `DataError` when something is missing or outside the bounds."""
        try:
            dials, spent = Dials(**state["dials"]), state["totals"]
            looked, told = int(state["looked"]), {str(k): float(v) for k, v in state["told"].items()}
            rows = state["window"]
            valid = self._within(dials) and looked >= 0 and all(map(math.isfinite, told.values()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"state of the buffer's control lacks {error}, or it cannot be used") from None
        if not valid:
            raise DataError(
                f"state of the buffer's control has {dials}, looked {looked}, told {told}; expected values "
                f"within {self.settings.bounds}, finite numbers and a train step"
            )
        totals = spent_from(spent)
        self._window.load(rows)
        self.dials, self._totals, self._looked, self._told = dials, totals, looked, told

    # ---------------------------------------------------------------- where the optimum is

    def _targets(self, found: Estimates) -> tuple[Dials, Dials, Dials]:
        """The optimum, and the least and the greatest value of each dial at the ends of the estimates' intervals."""
        assert found.alpha is not None
        mus = [self.settings.mu] if found.mu is None else [found.mu.value, found.mu.low, found.mu.high]
        alphas = [found.alpha.value, found.alpha.low, found.alpha.high]
        corners = [(mus[0], alpha) for alpha in alphas] + [(mu, alphas[0]) for mu in mus[1:]]
        uses = self.settings.samples_per_insert or found.uses or self.settings.uses
        best = [
            self._best(
                Workload(min(max(mu, LEAST_MU), MOST_MU), self.settings.rho, PowerLaw(min(alpha, MOST_ALPHA))), uses
            )
            for mu, alpha in corners
        ]
        capacities = [dials.capacity for dials in best]
        ratios = [dials.samples_per_insert for dials in best if dials.samples_per_insert is not None]
        lowest = Dials(min(capacities), min(ratios, default=None))
        return best[0], lowest, Dials(max(capacities), max(ratios, default=None))

    def _best(self, workload: Workload, uses: float) -> Dials:
        """The optimum within the bounds; `uses` are what the run has where they are not turned."""
        settings = self.settings
        if not settings.turns_uses:
            return Dials(self._capacity(workload, uses), settings.samples_per_insert)
        if not settings.turns_capacity:
            return Dials(settings.capacity, self._uses(workload, settings.capacity))
        best = self._clipped(optimum(workload).uses_per_rollout)
        capacity = self._capacity(workload, best)
        bounded = capacity in (settings.bounds.least_capacity, settings.bounds.most_capacity)
        return Dials(capacity, self._uses(workload, capacity) if bounded else best)

    def _capacity(self, workload: Workload, uses: float) -> int:
        if not self.settings.turns_capacity:
            return self.settings.capacity
        bounds, x = self.settings.bounds, max(best_horizon(workload, uses), LEAST_HORIZON)
        x = min(x, self.settings.longest)
        wanted = min(x * self.settings.batch_size / uses, float(bounds.most_capacity))
        return max(round(wanted / bounds.step) * bounds.step, bounds.least_capacity)

    def _uses(self, workload: Workload, capacity: int) -> float:
        return self._clipped(best_uses_at(workload, capacity / self.settings.batch_size))

    def _clipped(self, uses: float) -> float:
        return min(max(uses, self.settings.bounds.least_uses), self.settings.bounds.most_uses)

    def _moved(self, name: str, current: float, target: float, low: float, high: float) -> tuple[float, str] | None:
        """Where a dial goes, and why; None while it is near enough."""
        settings = self.settings
        aim = min(max(current, low), high)  # as near as the estimates still allow
        if abs(aim / current - 1) <= settings.hysteresis:
            return None
        value = min(max(aim, current / (1 + settings.step)), current * (1 + settings.step))
        limited = value != aim
        if name == "capacity":  # whole steps, one at least
            step = settings.bounds.step
            value = max(value // step * step, current + step) if value > current else -(-value // step) * step
            value = int(value if value != current else current - step)
        why = f", by {settings.step:.0%} at once" if limited else ""
        return value, f"{name} {current:.4g} to {value:.4g}{why}: the optimum is {target:.4g} ({low:.4g} to {high:.4g})"

    def _within(self, dials: Dials) -> bool:
        settings, bounds = self.settings, self.settings.bounds
        capacity, uses = dials.capacity, dials.samples_per_insert
        held = (
            type(capacity) is int
            and bounds.least_capacity <= capacity <= bounds.most_capacity
            and capacity % bounds.step == 0
        )
        kept = settings.turns_uses and uses is not None and bounds.least_uses <= uses <= bounds.most_uses
        return (held if settings.turns_capacity else capacity == settings.capacity) and (
            kept or (not settings.turns_uses and uses == settings.samples_per_insert)
        )


def _numbers(found: Estimates) -> dict[str, float | None]:
    """What the metrics of a step say of the estimates: of the effective sample fractions that of the oldest age."""
    return {
        "mu": None if found.mu is None else found.mu.value,
        "alpha": None if found.alpha is None else found.alpha.value,
        "uses": found.uses,
        "drift": found.drift,
        "ess_oldest": list(found.ess.values())[-1] if found.ess else None,
    }
