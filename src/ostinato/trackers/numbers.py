"""A record of metrics.jsonl as trackers take it: finite numbers by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

PREFIXES = {"step": "train", "evaluation": "eval"}


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """All finite numbers, nested ones too, by `train/NAME` or `eval/NAME`: names as in docs/metrics.md.

    Left out: what is no number, none, NaN or infinite, and `train_step`, which is the axis.
    """
    prefix = PREFIXES[record["event"]]
    return {name: value for name, value in _flat(record, prefix) if name != f"{prefix}/train_step"}


def _flat(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in tree.items():
        name = f"{prefix}/{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        elif isinstance(value, Real) and math.isfinite(value):
            yield name, float(value)
