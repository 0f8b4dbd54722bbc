"""Histograms over all drawn samples of a run, and over all rollouts that have left the buffer.

Source: arXiv 2604.08706, figure 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.protocols import Draw

HISTOGRAMS = ("staleness", "residence", "uses", "steps_since_last_use")


class ReplayStatistics:
    """Integer histograms, O(batch) a call, exact over a whole run.

    `staleness`, `residence` and `steps_since_last_use` count drawn samples, in train steps; a rollout drawn for the
    first time counts as `new` instead of in the last one. `uses` counts rollouts that have left the buffer by how often
    each was drawn: those still inside would be counted too early.
    """

    def __init__(self) -> None:
        self._counts = {name: np.zeros(0, np.int64) for name in HISTOGRAMS}
        self._new = 0

    def record_draw(self, draw: Draw) -> None:
        """Count a batch. Raises `DataError` on a negative age."""
        repeated = draw.steps_since_last_use >= 0
        self._add("staleness", draw.staleness)
        self._add("residence", draw.residence)
        self._add("steps_since_last_use", draw.steps_since_last_use[repeated])
        self._new += len(draw) - int(np.count_nonzero(repeated))

    def record_left(self, uses: NDArray[np.int64]) -> None:
        """Count rollouts that left the buffer, shape (n,): how often each had been drawn."""
        self._add("uses", uses)

    def summary(self) -> dict[str, Any]:
        """`{name: {"counts": [...], "mean": float}}` for each histogram and `"new": int`.

        `counts[v]` is how often the value v occurred; the mean of an empty histogram is NaN.
        """
        histograms = {name: {"counts": c.tolist(), "mean": _mean(c)} for name, c in self._counts.items()}
        return {**histograms, "new": self._new}

    def state_dict(self) -> dict[str, Any]:
        """Everything counted so far, as JSON-able lists."""
        return {**{name: counts.tolist() for name, counts in self._counts.items()}, "new": self._new}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises `DataError` when a histogram is missing."""
        missing = [name for name in (*HISTOGRAMS, "new") if name not in state]
        if missing:
            raise DataError(f"replay statistics lack {missing[0]!r}, got {sorted(state)}")
        self._counts = {name: np.array(state[name], np.int64) for name in HISTOGRAMS}
        self._new = int(state["new"])

    def _add(self, name: str, values: NDArray[np.int64]) -> None:
        if len(values) and values.min() < 0:
            raise DataError(f"{name} counts steps or uses and cannot be negative, got {values.min()}")
        more, counts = np.bincount(values), self._counts[name]
        if len(more) > len(counts):
            more, counts = counts, more
        counts[: len(more)] += more
        self._counts[name] = counts


def _mean(counts: NDArray[np.int64]) -> float:
    total = int(counts.sum())
    return float(np.arange(len(counts)) @ counts / total) if total else float("nan")
