"""What a run has lately seen of each age of rollouts: drift, second moment, effective sample size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.setting_checks import check_whole
from ostinato.stats.ages import AGE_EDGES, age_buckets, age_names
from ostinato.stats.effective_size import effective_sample_fraction
from ostinato.stats.off_policy import checked_figures

Floats = NDArray[np.float64]

KEPT = ("tokens", "log_ratio_sum", "log_ratio_square_sum", "kl_sum")
"""The figures of a rollout that are kept, besides its age."""


class AgeStatistics:
    """The latest `window` trained rollouts of each age bucket, from which its numbers are exact.

    `edges`: lower ends of the buckets, in train steps. A window and not a decaying sum: one huge importance weight
    would rule such a sum long after it has faded; here it leaves with the window. Repeats of a rollout count each time.
    Raises `ConfigError` for impossible edges or a window below 1.
    """

    def __init__(self, *, edges: Sequence[int] = AGE_EDGES, window: int = 512) -> None:
        check_whole("window", window, least=1)
        self._names = age_names(edges)
        self.edges, self.window = tuple(edges), window
        self._kept: dict[str, Floats] = {}  # bucket: (rollouts, 1 + KEPT), age first, oldest record first

    def record(self, figures: Mapping[str, Floats], staleness: NDArray[np.int64]) -> None:
        """Add a batch: `figures` as for `off_policy.diagnose`, `staleness` int64 (n,).

        Rollouts without tokens are left out. Raises `DataError` for figures that cannot be used or a negative age.
        """
        columns = checked_figures(figures, len(staleness))
        table = np.column_stack([staleness.astype(np.float64), *(columns[name] for name in KEPT)])
        for name, rows in age_buckets(staleness, self.edges).items():
            trained = table[rows[columns["tokens"][rows] > 0]]
            if len(trained):
                self._kept[name] = np.concatenate([self._held(name), trained])[-self.window :]

    def summary(self) -> dict[str, dict[str, float]]:
        """Age bucket -> its numbers, youngest first; only buckets that hold rollouts:

        rollouts            how many the numbers are of    age                mean age, train steps
        kl_k3               KL(mu || pi), nats a token     kl_sequence_k1     mean of -X: nats a rollout
        log_ratio_square    mean over tokens of x^2        ess_fraction       of exp(X), within [1 / rollouts, 1]
        weight_variance     var(exp(X)) / mean(exp(X))^2 = 1 / ess_fraction - 1: how much importance weights of this
                            age widen an estimate

        x: log-ratio of a token, X: of a rollout, as in `off_policy`.
        """
        return {name: _numbers(self._kept[name]) for name in self._names if name in self._kept}

    def drift(self) -> float | None:
        """Nats a rollout by which the policy moves away a train step: c of KL = c age. None without aged rollouts.

            c = sum_i age_i (-X_i) / sum_i age_i^2       least squares through the origin over all windows

        Sampling noise can make it negative when nothing has moved. 1 / c is the age at which a rollout is one nat away.
        Source: the drift that Freshness-Aware PER, arXiv 2604.16918, assumes, measured.
        """
        rollouts = np.concatenate([np.zeros((0, 1 + len(KEPT))), *self._kept.values()])
        age, log_ratio = rollouts[:, 0], rollouts[:, 1 + KEPT.index("log_ratio_sum")]
        squares = float(age @ age)
        return float(-(age @ log_ratio)) / squares if squares else None

    def state_dict(self) -> dict[str, Any]:
        """Every window, JSON-able."""
        return {"edges": list(self.edges), "kept": {name: kept.tolist() for name, kept in self._kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`; a smaller window keeps the latest. Raises `DataError` for other edges or columns."""
        if list(state.get("edges", ())) != list(self.edges):
            raise DataError(f"age statistics have edges {list(self.edges)}, the state has {state.get('edges')}")
        loaded = {}
        for name, rows in state.get("kept", {}).items():
            loaded[name] = self._restored(name, rows)[-self.window :]
        self._kept = loaded

    def _restored(self, name: str, rows: Any) -> Floats:
        try:
            kept = np.array(rows, np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"age statistics of {name!r} cannot be used: {error}") from None
        if name not in self._names or kept.ndim != 2 or kept.shape[1] != 1 + len(KEPT):
            raise DataError(f"age statistics of {name!r}: got shape {kept.shape}, expected (n, {1 + len(KEPT)})")
        if not (np.isfinite(kept).all() and (kept[:, 1] > 0).all()):
            raise DataError(f"age statistics of {name!r} hold a number that is not finite, or a rollout without tokens")
        return kept

    def _held(self, name: str) -> Floats:
        return self._kept.get(name, np.zeros((0, 1 + len(KEPT))))


def _numbers(kept: Floats) -> dict[str, float]:
    age, tokens, log_ratio, log_ratio_square, kl = kept.T
    fraction = effective_sample_fraction(log_ratio)
    return {
        "rollouts": float(len(kept)),
        "age": float(age.mean()),
        "kl_k3": float(kl.sum() / tokens.sum()),
        "kl_sequence_k1": float(-log_ratio.mean()),
        "log_ratio_square": float(log_ratio_square.sum() / tokens.sum()),
        "ess_fraction": fraction,
        "weight_variance": 1 / fraction - 1,
    }
