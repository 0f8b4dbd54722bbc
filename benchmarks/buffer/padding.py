"""Rollouts as arrays of a fixed shape, padded to the longest there may be: what peers without ragged rows need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .profiles import Profile, Record

TOKENS = {"tokens": np.int32, "mask": np.bool_, "logprobs": np.float32}
NUMBERS = {
    "advantage": np.float32,
    "reward": np.float32,
    "group": np.int64,
    "uid": np.int64,
    "version": np.int32,
}
Arrays = dict[str, NDArray[Any]]


def padded_arrays(profile: Profile, records: Sequence[Record]) -> Arrays:
    """Zero-padded token arrays (n, longest), `lengths`, and one array a number."""
    arrays: Arrays = {name: np.zeros((len(records), profile.longest), dtype) for name, dtype in TOKENS.items()}
    for i, record in enumerate(records):
        for name in TOKENS:
            arrays[name][i, : len(record[name])] = record[name]
    arrays["lengths"] = np.array([len(record["tokens"]) for record in records], np.int32)
    return arrays | {name: np.array([r[name] for r in records], dtype) for name, dtype in NUMBERS.items()}
