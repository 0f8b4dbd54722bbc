"""Small state from record to record: only what changed, and of what grew only the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

NEW, MORE = "small.", "more."


def growth(before: Arrays, after: Arrays) -> dict[str, NDArray[Any]]:
    """What a record must hold to lead from `before` to `after`."""
    changed: dict[str, NDArray[Any]] = {}
    for name, array in after.items():
        old = before.get(name)
        if old is not None and old.dtype == array.dtype and _same(old, array[: len(old)] if old.ndim else array):
            if array.ndim and len(array) > len(old):
                changed[MORE + name] = array[len(old) :]
        else:
            changed[NEW + name] = array
    return changed


def grown(before: Arrays, record: Arrays) -> dict[str, NDArray[Any]]:
    """`before` with what a record holds. Raises `KeyError` when it continues something unknown."""
    result = dict(before)
    for name, array in record.items():
        if name.startswith(NEW):
            result[name[len(NEW) :]] = array
        elif name.startswith(MORE):
            key = name[len(MORE) :]
            result[key] = np.concatenate([result[key], array])
    return result


def _same(old: NDArray[Any], new: NDArray[Any]) -> bool:
    return old.shape == new.shape and old.tobytes() == new.tobytes()
