"""JSON values to arrays without loss: numpy would take "7" or 1.9 for a whole number, null for NaN."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError

LEAVES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "U": {str}}
"""Python types of the values that an array of each kind may be made of."""


def leaves_of(value: Any) -> list[Any]:
    """What stands in a list, in the lists in it, and so on; lists may be of different depth."""
    level = [value]
    while any(type(entry) is list for entry in level):
        level = list(chain.from_iterable(entry if type(entry) is list else (entry,) for entry in level))
    return level


def fits(kind: str, leaves: Sequence[Any]) -> bool:
    """Whether values of these types make an array of the kind as they are."""
    return {type(leaf) for leaf in leaves} <= LEAVES[kind]


def exact_array(values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values as an array. Raises `DataError` where one is of another type or too large for the dtype."""
    leaves = leaves_of(list(values))
    if not fits(dtype.kind, leaves):
        odd = next(leaf for leaf in leaves if type(leaf) not in LEAVES[dtype.kind])
        raise DataError(f"holds {str(odd)[:40]!r} of type {type(odd).__name__}, expected {dtype}")
    with np.errstate(over="ignore"):
        array = np.asarray(values, dtype)
    if dtype.kind == "f" and (np.isinf(array) & np.isfinite(np.asarray(values, np.float64))).any():
        raise DataError(f"holds a number too large for {dtype}")
    return array
