"""Which rollouts are not drawn again: those the policy has left, or whose whole age it has left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_choice, check_finite, check_not_negative, check_whole
from ostinato.stats import AGE_EDGES, AgeStatistics, age_buckets
from ostinato.stats.off_policy import checked_figures

Level = Literal["geometric", "sequence"]


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """Two bounds, both off by default.

    `ratio_bound` > 1: a rollout goes when its own ratio is outside [1 / bound, bound]; `ratio_level`: of which ratio,
    the `geometric` mean over its tokens or that of the `sequence`, their product.
    `ess_bound` in (0, 1): a rollout goes when the effective sample fraction of its age is below it. An age closes below
    the bound and opens again at the bound plus `ess_hysteresis`; it is judged over its latest `window` rollouts, once
    there are `min_samples`. `edges`: lower ends of the ages, in train steps.
    Raises `ConfigError` for impossible settings.
    """

    ratio_bound: float | None = None
    ratio_level: Level = "geometric"
    ess_bound: float | None = None
    ess_hysteresis: float = 0.05
    min_samples: int = 64
    window: int = 512
    edges: Sequence[int] = AGE_EDGES

    def __post_init__(self) -> None:
        if self.ratio_bound is not None and not check_finite("ratio_bound", self.ratio_bound) > 1:
            raise ConfigError(f"ratio_bound must be above 1, got {self.ratio_bound}")
        check_choice("ratio_level", self.ratio_level, get_args(Level))
        check_not_negative("ess_hysteresis", self.ess_hysteresis)
        if self.ess_bound is not None and not 0 < check_finite("ess_bound", self.ess_bound) <= 1 - self.ess_hysteresis:
            got = f"ess_bound {self.ess_bound} with ess_hysteresis {self.ess_hysteresis}"
            raise ConfigError(f"expected 0 < ess_bound <= 1 - ess_hysteresis, got {got}")
        check_whole("min_samples", self.min_samples, least=2)
        check_whole("window", self.window, least=self.min_samples)


class ReuseGovernor:
    """Looks at each trained batch and names the rollouts of it that should leave the buffer.

        own ratio     |log_ratio_sum / tokens| > log(ratio_bound), or |log_ratio_sum| > log(ratio_bound)
        age           ess_fraction(age bucket) < ess_bound       closes;   >= ess_bound + ess_hysteresis   opens

    Only drawn rollouts are judged, so rollouts that grow into a closed age are still drawn once and measured: that is
    how it can open again. Removing by ratio keeps what the policy still likes, a bias that no loss corrects.
    Sources: VCPO, arXiv 2602.17616 (ESS as the measure of usable data); geometric ratio above 3 rejected: the filter of
    Freshness-Aware PER, arXiv 2604.16918.
    """

    def __init__(self, settings: ReuseSettings) -> None:
        self.settings = settings
        self.ages = AgeStatistics(edges=settings.edges, window=settings.window)
        self._closed: set[str] = set()
        self._removed = {"ratio": 0, "age": 0}

    def remove(
        self,
        figures: Mapping[str, NDArray[np.float64]],
        *,
        staleness: NDArray[np.int64],
        rollout_ids: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Ids of rollouts not to be drawn again, ascending, each once.

        `figures` as for `stats.diagnose`, `staleness` and `rollout_ids` int64 (n,). Rollouts without tokens have a
        ratio of 1. Raises `DataError` for input that cannot be used; nothing is then remembered.
        """
        columns = checked_figures(figures, len(rollout_ids))
        if staleness.shape != rollout_ids.shape:
            raise DataError(f"staleness has shape {staleness.shape}, expected {rollout_ids.shape}: one value a rollout")
        self.ages.record(columns, staleness)
        self._judge_ages()
        by_ratio = np.unique(rollout_ids[self._outside(columns)])
        closed = [rows for name, rows in age_buckets(staleness, self.settings.edges).items() if name in self._closed]
        by_age = np.setdiff1d(rollout_ids[np.concatenate(closed)] if closed else rollout_ids[:0], by_ratio)
        self._removed["ratio"] += len(by_ratio)
        self._removed["age"] += len(by_age)
        return np.union1d(by_ratio, by_age)

    @property
    def closed(self) -> tuple[str, ...]:
        """Names of the closed ages, sorted."""
        return tuple(sorted(self._closed))

    def metrics(self) -> dict[str, float]:
        """`reuse.removed_ratio`, `reuse.removed_age`: rollouts named so far, by reason; `reuse.closed_ages`: now."""
        removed = {f"reuse.removed_{reason}": float(count) for reason, count in self._removed.items()}
        return removed | {"reuse.closed_ages": float(len(self._closed))}

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, JSON-able."""
        return {"ages": self.ages.state_dict(), "closed": sorted(self._closed), "removed": dict(self._removed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises `DataError` when something is missing or of other edges."""
        try:
            closed = set(map(str, state["closed"])) if self.settings.ess_bound is not None else set()
            removed = {reason: int(state["removed"][reason]) for reason in self._removed}
            ages = state["ages"]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"reuse governor state lacks {error}, or it cannot be used") from None
        self.ages.load_state_dict(ages)
        self._closed, self._removed = closed, removed

    def _judge_ages(self) -> None:
        bound = self.settings.ess_bound
        if bound is None:
            return
        for name, numbers in self.ages.summary().items():
            if numbers["rollouts"] < self.settings.min_samples:
                continue
            if numbers["ess_fraction"] < bound:
                self._closed.add(name)
            elif numbers["ess_fraction"] >= bound + self.settings.ess_hysteresis:
                self._closed.discard(name)

    def _outside(self, columns: Mapping[str, NDArray[np.float64]]) -> NDArray[np.bool_]:
        log_ratio = columns["log_ratio_sum"]
        if self.settings.ratio_bound is None:
            return np.zeros(len(log_ratio), np.bool_)
        if self.settings.ratio_level == "geometric":
            log_ratio = log_ratio / np.maximum(columns["tokens"], 1)
        return np.abs(log_ratio) > math.log(self.settings.ratio_bound)
