"""Between `Rollouts` (packed) and the rows of a table (one array a row and token column)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import BOOK_COLUMNS
from ostinato.buffer.table import Table
from ostinato.errors import DataError
from ostinato.ragged import Extra, Ragged, described, offsets_of
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts, extra_layouts, from_arrays, to_arrays

ROW_KINDS: dict[str, Any] = dict(ROW_COLUMNS) | {"source": "<U1"} | dict.fromkeys(TOKEN_COLUMNS, object)


def empty_table(extras: Mapping[str, str]) -> Table:
    """A table for rollouts whose extra columns have these layouts."""
    return Table(BOOK_COLUMNS | ROW_KINDS, extras)


def split(rollouts: Rollouts) -> dict[str, NDArray[Any]]:
    """Row columns and per-row copies of the payload."""
    columns = {name: getattr(rollouts, name) for name in ROW_COLUMNS}
    for name in TOKEN_COLUMNS:
        columns[name] = _row_copies(getattr(rollouts, name), rollouts.offsets)
    for name, column in rollouts.extras.items():
        if isinstance(column, Ragged):
            columns[f"extra.{name}"] = _row_copies(column.values, column.offsets)
        else:
            columns[f"extra.{name}"] = _row_copies(column, np.arange(len(column) + 1))
    return columns


def joined(table: Table, rows: NDArray[np.int64]) -> Rollouts:
    """The given rows, at least one, as packed rollouts; a copy."""
    payload = {name: table[name][rows] for name in TOKEN_COLUMNS}
    extras: dict[str, Extra] = {}
    for name, layout in table.extras.items():
        parts = list(table[f"extra.{name}"][rows])
        extras[name] = Ragged.from_rows(parts) if layout.startswith("ragged") else np.concatenate(parts)
    return Rollouts(
        offsets=offsets_of([len(row) for row in payload["tokens"]]),
        **{name: np.concatenate(list(values)) for name, values in payload.items()},
        **{name: table[name][rows] for name in ROW_COLUMNS},
        extras=extras,
    )


def table_arrays(table: Table) -> dict[str, NDArray[Any]]:
    """All rows as plain arrays by name; `table_of` is the inverse."""
    arrays = {f"book.{name}": table[name].copy() for name in BOOK_COLUMNS}
    if len(table):
        arrays |= to_arrays(joined(table, np.arange(len(table))), prefix="rollouts.")
    return arrays


def table_of(arrays: Mapping[str, NDArray[Any]]) -> Table:
    """A new table with the rows of `table_arrays`. Raises `KeyError` or `DataError` when they are incomplete."""
    book = {name: arrays[f"book.{name}"] for name in BOOK_COLUMNS}
    n = len(book["rollout_id"])
    for name, column in book.items():
        if column.shape != (n,) or column.dtype != np.int64:
            raise DataError(f"book.{name} is {described(column)}, expected int64 ({n},)")
    if np.any(np.diff(book["rollout_id"]) <= 0):
        raise DataError("rollout ids do not rise")
    if n == 0:
        return empty_table({})
    rollouts = from_arrays(arrays, prefix="rollouts.")
    if len(rollouts) != n:
        raise DataError(f"{len(rollouts)} rollouts for {n} rows of the book")
    table = empty_table(extra_layouts(rollouts))
    table.append(n, book | split(rollouts))
    return table


def _row_copies(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    rows = np.empty(len(offsets) - 1, object)
    for i in range(len(rows)):
        rows[i] = values[offsets[i] : offsets[i + 1]].copy()
    return rows
