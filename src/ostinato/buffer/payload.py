"""Between `Rollouts` (packed) and the rows of a table (one array a row and token column)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.table import Table
from ostinato.errors import DataError
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Extra, Ragged, Rollouts, offsets_of

ROW_KINDS: dict[str, Any] = dict(ROW_COLUMNS) | {"source": "<U1"} | dict.fromkeys(TOKEN_COLUMNS, object)


def split(rollouts: Rollouts, table: Table) -> dict[str, NDArray[Any]]:
    """Row columns and per-row copies of the payload. Extra columns must be the same for the life of a buffer."""
    columns = {name: getattr(rollouts, name) for name in ROW_COLUMNS}
    for name in TOKEN_COLUMNS:
        columns[name] = _row_copies(getattr(rollouts, name), rollouts.offsets)
    present = {name for name in table if name.startswith(("extra.", "ragged."))}
    given: dict[str, NDArray[Any]] = {}
    for name, column in rollouts.extras.items():
        if isinstance(column, Ragged):
            given[f"ragged.{name}"] = _row_copies(column.values, column.offsets)
        else:
            given[f"extra.{name}"] = _row_copies(column, np.arange(len(column) + 1))
    if len(table) and set(given) != present:
        raise DataError(f"extra columns {sorted(given)} differ from those already held, {sorted(present)}")
    for name in set(given) - present:
        table.add_column(name, object)
    return columns | given


def joined(table: Table, rows: NDArray[np.int64]) -> Rollouts:
    """The given rows as packed rollouts; a copy."""
    payload = {name: table[name][rows] for name in TOKEN_COLUMNS}
    extras: dict[str, Extra] = {}
    for name in table:
        if name.startswith("ragged."):
            extras[name.removeprefix("ragged.")] = Ragged.from_rows(list(table[name][rows]))
        elif name.startswith("extra."):
            extras[name.removeprefix("extra.")] = np.concatenate(list(table[name][rows]))
    return Rollouts(
        offsets=offsets_of([len(row) for row in payload["tokens"]]),
        **{name: np.concatenate(list(values)) for name, values in payload.items()},
        **{name: table[name][rows] for name in ROW_COLUMNS},
        extras=extras,
    )


def _row_copies(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    rows = np.empty(len(offsets) - 1, object)
    for i in range(len(rows)):
        rows[i] = values[offsets[i] : offsets[i + 1]].copy()
    return rows
