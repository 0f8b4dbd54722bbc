"""What a step of replay tells the trackers: names under `replay/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.integrations.trl.batches import Window
from ostinato.integrations.trl.store import ReplayStore
from ostinato.loop.priorities import priorities_of
from ostinato.losses import combined_metrics
from ostinato.protocols import Trained
from ostinato.stats import FIGURES, diagnose

UNSAID = ("allocated_bytes", "starved_sources", "source_share.", "drawn_source_share.", "left_unused_from_")
"""Beginnings of names of `ReplayBuffer.metrics` that are left out: of data sets, which TRL does not tell; details."""

SUMS = ("size", "bytes", "admitted", "left", "drawn", "stale_updates")
"""Numbers that add up over processes, as counts that begin with `refused.` or `expired.` do; all others are means."""


def figures_of(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, NDArray[np.float64]]:
    """Figures of the micro-batches of a step as columns of the draw, float64 (n,)."""
    return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in FIGURES}


def followed_up(store: ReplayStore, window: Window) -> dict[str, float]:
    """Write priorities back, and return what `told` says; both of the policy before its step."""
    seen = Trained(loss_metrics(window.metrics), figures_of(window.figures))
    if store.config.priority is not None and not window.borrowed:
        priorities = priorities_of(store.config.priority, window.draw, seen)
        store.buffer.update_priorities(window.draw.rollout_ids, priorities)
    return told(store, window, seen)


def told(store: ReplayStore, window: Window, trained: Trained) -> dict[str, float]:
    """Numbers about the buffer, the draw and how far the policy has moved from those that generated it."""
    draw = window.draw
    held = {name: value for name, value in store.buffer.metrics().items() if not name.startswith(UNSAID)}
    numbers = held | {name: float(count) for name, count in store.counters.items()}
    numbers |= {
        "batch_staleness_mean": float(draw.staleness.mean()),
        "batch_staleness_max": float(draw.staleness.max()),
        "batch_new_fraction": float(np.mean(draw.uses == 0)),
        "batch_unique_fraction": len(np.unique(draw.rollout_ids)) / len(draw),
        "importance_weight_mean": float(draw.importance_weights.mean()),
        **trained.metrics,
    }
    if trained.figures:
        correct_n = draw.rollouts.reward > store.buffer.statistics.correct_above
        measured = diagnose(trained.figures, staleness=draw.staleness, fresh=draw.uses == 0, correct=correct_n)
        # TRL's own losses tell their clipping themselves, and not here.
        unsaid = ("age_",) if window.metrics else ("age_", "clip_fraction")
        numbers |= {f"policy/{name}": value for name, value in measured.items() if not name.startswith(unsaid)}
    return numbers


def over_processes(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers of all processes as one: added up, or the mean of those that have one."""
    result = {}
    for name in sorted({name for own in numbers for name in own}):
        values = [own[name] for own in numbers if name in own]
        adds = name in SUMS or name.startswith(("refused.", "expired."))
        result[name] = sum(values) / (1 if adds else len(values))
    return result


def loss_metrics(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """Metrics of a loss over the micro-batches of a step, sums as means over tokens."""
    sums = {name: float(value) for name, value in combined_metrics(parts).items() if value.ndim == 0}
    tokens = max(sums.get("tokens", 0.0), 1.0)
    return {
        f"loss/{name.removesuffix('_sum')}": value / tokens if name.endswith("_sum") or name == "clipped" else value
        for name, value in sums.items()
    }
