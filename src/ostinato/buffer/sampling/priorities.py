"""The value of a rollout before any exponent: the priority written back, a column, or a function of the columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.protocol import Rows
from ostinato.buffer.settings import is_function
from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_not_negative, shown

PriorityFunction = Callable[[Columns, Rows], NDArray[np.float64]]
"""(columns, live rows) -> one finite value of at least 0 for each, float64 (n,); it may not look at anything else."""


class Priorities:
    """|column| or function, plus `eps`, for any rows.

    `eps` is 0 unless asked for: an addend before the exponent lifts the smallest priorities most, which under decay
    draws old rollouts that should be gone. Raises `ConfigError` for an eps below 0.
    """

    def __init__(self, by: str | PriorityFunction, eps: float) -> None:
        if not (isinstance(by, str) or is_function(by)):
            raise ConfigError(f"by must be the name of a column or a function of (columns, rows), got {shown(by)}")
        self.by, self.eps = by, check_not_negative("eps of a priority", eps)

    @property
    def name(self) -> str:
        """How messages call it."""
        if isinstance(self.by, str):
            return f"column {self.by!r}"
        return f"priority function {getattr(self.by, '__name__', type(self.by).__name__)}"

    def check_column(self, columns: Columns) -> None:
        """Raise `ConfigError` when priorities are to come from a column that is not there, or holds no numbers."""
        if not isinstance(self.by, str):
            return
        try:
            column = columns[self.by]
        except KeyError as error:
            raise ConfigError(f"priorities by {self.by!r}: {error.args[0]}") from None
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise ConfigError(f"{self.name} is {column.dtype} {column.shape}, expected one number a rollout")

    def __call__(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """Values of these live rows, float64 (n,). Raises `DataError` when one is negative, infinite or NaN."""
        values = self._raw(columns, rows)
        if len(rows) and not (values.min() >= 0 and values.max() < np.inf):
            bad = int(np.flatnonzero(~((values >= 0) & (values < np.inf)))[0])
            raise DataError(
                f"{self.name} gives {values[bad]} for rollout {int(columns['rollout_id'][rows[bad]])}, "
                "expected a finite value of at least 0"
            )
        return values + self.eps if self.eps else values

    def _raw(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        if isinstance(self.by, str):
            return np.abs(columns[self.by][rows].astype(np.float64))
        values = np.asarray(self.by(columns, rows))
        if values.shape != (len(rows),) or values.dtype.kind not in "biuf":
            first = f", the first is rollout {int(columns['rollout_id'][rows[0]])}" if len(rows) else ""
            raise DataError(f"{self.name} gives {values.dtype} {values.shape} for {len(rows)} rows{first}")
        return values.astype(np.float64)
