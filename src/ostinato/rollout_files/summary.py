"""What is in there, in numbers: the object that `ostinato buffer inspect --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError
from ostinato.rollout_files.stored import Stored
from ostinato.rollouts import Rollouts, extra_layouts
from ostinato.staleness import residence, staleness

ORDERS = ("reward", "age", "uses")


def summary(stored: Stored, *, correct_above: float = 0.5) -> dict[str, Any]:
    """Numbers about all rollouts; keys never differ, what cannot be known is None.

    A quantity comes as {"mean", "min", "p10", "median", "p90", "max"}, in tokens (lengths) or train steps (ages).
    `uses` are draws so far; `informative_fraction` is the share of rollouts, and of groups, whose rewards deviate.
    """
    columns = stored.columns()
    tokens = int(columns["length"].sum())
    groups, first = np.unique(columns["group_id"], return_index=True)
    uses = columns.get("uses")
    deviates = columns["group_reward_std"] > 0
    return {
        "kind": stored.kind,
        "rollouts": len(stored),
        "groups": len(groups),
        "prompts": len(np.unique(columns["prompt_id"])),
        "tokens": tokens,
        "bytes": stored.nbytes,
        "bytes_per_token": stored.nbytes / tokens if tokens else None,
        "train_step": stored.train_step,
        "staleness": spread(staleness(stored.train_step, columns["policy_version_min"])),
        "residence": spread(residence(stored.train_step, columns["insert_step"])) if "insert_step" in columns else None,
        "policy_version": _range(columns["policy_version_min"], columns["policy_version_max"]),
        "uses": None if uses is None else {**(spread(uses) or {}), "never_fraction": _share(uses == 0)},
        "reward": spread(columns["reward"]),
        "correct_above": correct_above,
        "correct_fraction": _share(columns["reward"] > correct_above),
        "advantage": spread(columns["advantage"]),
        "informative_fraction": {"rollouts": _share(deviates), "groups": _share(deviates[first])},
        "prompt_length": spread(columns["prompt_length"]),
        "completion_length": spread(columns["length"] - columns["prompt_length"]),
        "truncated_fraction": _share(columns["truncated"]),
        "temperature": _range(columns["temperature"], columns["temperature"]),
        "truncated_sampling_fraction": _share((columns["top_p"] < 1) | (columns["top_k"] > 0)),
        "sources": _shares(columns["source"]),
        "priority": spread(columns["priority"]) if "priority" in columns else None,
        "extras": extra_layouts(next(stored.parts())) if len(stored) else {},
    }


def shown_rows(stored: Stored, n: int, *, sort: str | None = None) -> tuple[Rollouts, list[dict[str, Any]]] | None:
    """Up to n rollouts and what is known about each; None when nothing is there.

    `sort`: "reward" the highest first, "age" the oldest policy first, "uses" the most used first; None: as they stand.
    Equal ones stay in the order in which they stand. Raises `ConfigError` for "uses" of a file, which has none.
    """
    columns = stored.columns()
    if sort is not None and sort not in ORDERS:
        raise ConfigError(f"sort is {sort!r}, expected one of {', '.join(ORDERS)}")
    if sort == "uses" and "uses" not in columns:
        raise ConfigError(f"a {stored.kind} file does not say how often a rollout was used, cannot sort by uses")
    keys = {
        "reward": -columns["reward"],
        "age": columns["policy_version_min"],
        "uses": -columns.get("uses", np.empty(0)),
    }
    order = np.arange(len(stored)) if sort is None else np.argsort(keys[sort], kind="stable")
    rows = order[:n]
    if not len(rows):
        return None
    about = [{name: column[row].item() for name, column in columns.items()} for row in rows]
    return stored.select(rows.tolist()), [{"row": int(row), **known} for row, known in zip(rows, about, strict=True)]


def spread(values: NDArray[Any]) -> dict[str, float] | None:
    """Mean, extremes and quantiles; None for nothing."""
    if not len(values):
        return None
    low, tenth, median, ninth, high = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist()
    return {"mean": float(np.mean(values)), "min": low, "p10": tenth, "median": median, "p90": ninth, "max": high}


def _share(flags: NDArray[np.bool_]) -> float | None:
    return float(np.mean(flags)) if len(flags) else None


def _range(low: NDArray[Any], high: NDArray[Any]) -> dict[str, float] | None:
    return {"min": low.min().item(), "max": high.max().item()} if len(low) else None


def _shares(names: NDArray[Any]) -> Mapping[str, float]:
    found, counts = np.unique(names, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(found[i]): float(counts[i] / len(names)) for i in order}
