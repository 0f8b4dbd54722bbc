"""One rollout at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts

_TAKES: dict[type[np.generic], tuple[tuple[type, ...], float]] = {
    np.int64: ((int, np.int64), 1 << 62),
    np.int32: ((int, np.int64), 1 << 31),
    np.float64: ((float, int), 1 << 62),
    np.float32: ((float, int), 1 << 53),
    np.bool_: ((bool, np.bool_), 2),
}
_KINDS = {name: _TAKES[dtype] for name, dtype in ROW_COLUMNS.items() if dtype in _TAKES}
"""What a column of numbers takes as it comes: types, and a bound of the absolute value. The rest is looked at."""

_DTYPES = tuple(np.dtype(dtype) for dtype in TOKEN_COLUMNS.values())
_NO_ROWS = {name: np.empty(0, dtype) for name, dtype in TOKEN_COLUMNS.items()}


class SingleRow:
    """A record of one rollout, written anew for every rollout that comes alone.

    To make the nineteen arrays of a record takes longer than to store what they hold.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._record = Rollouts.from_rows([[]], [[]], [[]])
        self._columns: dict[str, Any] = {}

    def of(self, tokens: Any, loss_mask: Any, behavior_logprobs: Any, columns: Mapping[str, Any]) -> Rollouts:
        """What `Rollouts.from_rows` gives for one row and single values; its memory is used again by the next call."""
        if _are_simple(tokens, loss_mask, behavior_logprobs) and self._write(columns, len(tokens)):
            for name, row in zip(TOKEN_COLUMNS, (tokens, loss_mask, behavior_logprobs), strict=True):
                object.__setattr__(self._record, name, row)
            return self._record
        single = {name: value if name == "extras" else [value] for name, value in columns.items()}
        return Rollouts.from_rows([tokens], [loss_mask], [behavior_logprobs], **single)

    def forget(self) -> None:
        """Let go of the rows of the latest record."""
        for name, row in _NO_ROWS.items():
            object.__setattr__(self._record, name, row)

    def _write(self, columns: Mapping[str, Any], length: int) -> bool:
        """Write the row columns; False: they need more than that."""
        if (names := tuple(columns)) != self._names and not self._renew(names):
            return False
        for name, value in columns.items():
            column, kinds, bound = self._columns[name]
            if not isinstance(value, kinds) or not -bound < value < bound:
                return False
            column[0] = value
        if "policy_version_max" not in columns:
            self._record.policy_version_max[0] = self._record.policy_version_min[0]
        self._record.offsets[1] = length
        return bool(0 <= columns["prompt_length"] <= length)

    def _renew(self, names: tuple[str, ...]) -> bool:
        """Begin anew for columns of these names; False: others must be derived, or there are other than numbers."""
        if not {"prompt_length", "prompt_id"} <= set(names) <= _KINDS.keys():
            return False
        self._names, self._record = names, Rollouts.from_rows([[]], [[]], [[]])
        self._columns = {name: (getattr(self._record, name), *_KINDS[name]) for name in names}
        return True


def _are_simple(*rows: Any) -> bool:
    """Whether these are token columns as they are stored."""
    for row, dtype in zip(rows, _DTYPES, strict=True):
        if type(row) is not np.ndarray or row.dtype != dtype or row.ndim != 1 or row.shape != rows[0].shape:
            return False
    return not np.count_nonzero(rows[0] < 0)
