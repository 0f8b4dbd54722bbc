"""Rollouts as plain arrays by name and back, for files and messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.ragged import Extra, Ragged
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts

COLUMNS = (*TOKEN_COLUMNS, "offsets", *ROW_COLUMNS)


def to_arrays(rollouts: Rollouts, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Flatten into plain arrays by name, for `numpy.savez`; `from_arrays` is the inverse."""
    arrays = {prefix + name: getattr(rollouts, name) for name in COLUMNS}
    for name, column in rollouts.extras.items():
        if isinstance(column, Ragged):
            arrays[f"{prefix}ragged.{name}"] = column.values
            arrays[f"{prefix}ragged_offsets.{name}"] = column.offsets
        else:
            arrays[f"{prefix}extra.{name}"] = column
    return arrays


def from_arrays(arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Rollouts:
    """Inverse of `to_arrays`. Raises `DataError` when a column is missing."""
    own = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
    if missing := [name for name in COLUMNS if name not in own]:
        raise DataError(f"rollouts are missing the column {missing[0]!r}")
    extras: dict[str, Extra] = {
        name.removeprefix("extra."): array for name, array in own.items() if name.startswith("extra.")
    }
    for name, array in own.items():
        if name.startswith("ragged."):
            key = name.removeprefix("ragged.")
            if f"ragged_offsets.{key}" not in own:
                raise DataError(f"rollouts are missing the column 'ragged_offsets.{key}'")
            extras[key] = Ragged(array, own[f"ragged_offsets.{key}"])
    return Rollouts(**{name: own[name] for name in COLUMNS}, extras=extras)
