"""Extra columns, and packed ones: rows of different lengths one after the other, `offsets` says where each begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column whose rows have different lengths: `values[offsets[i]:offsets[i+1]]` is row i.

    Raises `DataError` on construction when the offsets (int64) do not rise from 0 to the number of values.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not isinstance(self.values, np.ndarray) or not self.values.ndim:
            raise DataError(f"the values of a ragged column are {described(self.values)}, expected an array of rows")
        check_offsets(self.offsets, len(self.values))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def from_rows(cls, rows: Sequence[NDArray[Any]]) -> Ragged:
        """Pack a sequence of arrays that agree in dtype and trailing shape. Raises `DataError` when they do not."""
        arrays = [np.asarray(row) for row in rows]
        if len({(row.dtype.kind, row.ndim, row.shape[1:]) for row in arrays}) > 1:
            shown = [described(row) for row in arrays[:4]]
            raise DataError(f"the rows of a ragged column differ in dtype or trailing shape, the first are {shown}")
        return cls(np.concatenate(arrays) if arrays else np.empty(0), offsets_of([len(row) for row in arrays]))

    def row(self, index: int) -> NDArray[Any]:
        """Row `index`, a view."""
        start, stop = row_bounds(self.offsets, index)
        return self.values[start:stop]

    def select(self, rows: NDArray[np.int64]) -> Ragged:
        """The given rows, in the given order (a copy)."""
        positions, offsets = gather_positions(self.offsets, row_numbers(rows, len(self)))
        return Ragged(self.values[positions], offsets)


Extra = NDArray[Any] | Ragged


def described(value: Any) -> str:
    """What a value is, for messages: dtype and shape of an array, the type of anything else."""
    if is_array(value):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__


def is_array(value: Any) -> bool:
    """Whether it is an array whose items all count; those of a masked one need not."""
    return type(value) is np.ndarray or (isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray))


def as_array(value: Any, name: str) -> NDArray[Any]:
    """`value` as an array. Raises `DataError` where numpy cannot make one: rows of different lengths, for one."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises any of them for what numpy cannot hold
        raise DataError(f"{name} cannot be an array: {error}") from None


def row_lengths(lengths: Any) -> NDArray[np.int64]:
    """Lengths of rows as int64 (n,). Raises `DataError` unless they are whole numbers of at least 0."""
    array = as_array(lengths, "lengths")
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size) or array.min(initial=0) < 0:
        raise DataError(f"lengths are {described(array)}, expected integers of at least 0 (n,)")
    return array.astype(np.int64)


def fits(values: NDArray[Any], dtype: Any) -> bool:
    """Whether values can be of this dtype without another meaning: of its kind, and integers within its range."""
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        return False
    if np.can_cast(values.dtype, dtype) or values.dtype.kind not in "iu" or np.dtype(dtype).kind == "f":
        return True
    if not values.size:
        return True
    bounds = np.iinfo(dtype)
    return bool(values.min() >= bounds.min and values.max() <= bounds.max)


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Running sum with a leading 0: where each row of a packed column begins, and where the last ends."""
    if type(lengths) is list:
        return np.array([*accumulate(lengths, initial=0)], np.int64)
    offsets = np.empty(len(lengths) + 1, np.int64)
    offsets[0] = 0
    np.add.accumulate(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def check_offsets(offsets: NDArray[np.int64], total: int) -> None:
    """Raise `DataError` unless the offsets rise from 0 to `total`, the number of values."""
    if not is_array(offsets) or offsets.dtype != np.int64 or offsets.ndim != 1 or not len(offsets):
        raise DataError(f"offsets are {described(offsets)}, expected int64 (rows + 1,)")
    if offsets[0] != 0 or offsets[-1] != total or np.count_nonzero(offsets[1:] < offsets[:-1]):
        raise DataError(f"offsets must rise from 0 to {total}, the number of values, got {offsets[:8]}...")


def row_bounds(offsets: NDArray[np.int64], index: int) -> tuple[np.int64, np.int64]:
    """Where row `index` begins and ends. Raises `DataError` when there is no such row."""
    if not 0 <= index < len(offsets) - 1:
        raise DataError(f"there is no row {index}, expected 0 to {len(offsets) - 2}")
    return offsets[index], offsets[index + 1]


def row_numbers(rows: NDArray[np.int64] | Sequence[int], n: int) -> NDArray[np.int64]:
    """`rows` as int64 (k,). Raises `DataError` unless they are integers from 0 to n - 1; masks are not row numbers."""
    index = as_array(rows, "row numbers")
    if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
        raise DataError(
            f"row numbers are {described(index)}, expected integers (k,); np.flatnonzero turns a mask into them"
        )
    if index.size and (index.min() < 0 or index.max() >= n):
        raise DataError(f"row numbers run from {index.min()} to {index.max()}, expected 0 to {n - 1}")
    return index.astype(np.int64, copy=False)


def gather_positions(
    offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the values of `rows` in a packed column, and the offsets of the result."""
    lengths = offsets[rows + 1] - offsets[rows]
    result = offsets_of(lengths)
    return np.arange(result[-1]) + np.repeat(offsets[rows] - result[:-1], lengths), result


def check_column(name: str, column: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """Raise `DataError` unless the column is an array of this dtype and shape."""
    good = is_array(column) and column.shape == shape
    if not good or (column.dtype.type is not dtype and column.dtype != dtype) or not column.dtype.isnative:
        raise DataError(f"{name} is {described(column)}, expected {dtype.__name__.rstrip('_')} {shape}")


def check_extra(name: str, column: Any, n: int) -> None:
    """Raise `DataError` unless the column has n rows that `numpy.savez` can hold without pickling."""
    if not isinstance(name, str):  # a file could not give it back
        raise DataError(f"the name of an extra column is {name!r}, expected a str")
    values = column.values if isinstance(column, Ragged) else column
    if not is_array(values) or not values.ndim or values.dtype.hasobject:
        raise DataError(f"extra column {name!r} is {described(values)}, expected a Ragged or an array without objects")
    if len(column) != n:
        raise DataError(f"extra column {name!r} has {len(column)} rows, expected {n}")


def check_extras(extras: Any, n: int) -> None:
    """Raise `DataError` unless these are extra columns of n rows by name, see `check_extra`."""
    if not isinstance(extras, Mapping):
        raise DataError(f"extras are {described(extras)}, expected extra columns by name")
    for name, column in extras.items():
        check_extra(name, column, n)


def layout(column: Extra) -> str:
    """What the rows of columns must share to stand in one, such as 'float32 (3, 2)' for rows of that shape.

    That is ragged or not, the dtype (texts: of any width) and the shape of a row, of a ragged one without its length.
    """
    values, ragged = (column.values, "ragged ") if isinstance(column, Ragged) else (column, "")
    dtype = values.dtype.type.__name__ if values.dtype.kind in "SU" else values.dtype
    return f"{ragged}{dtype} {values.shape[1:]}"


def concatenate_extra(parts: Sequence[Extra]) -> Extra:
    """The rows of columns of one layout, in order."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if not ragged:
        return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    lengths = np.concatenate([np.diff(part.offsets) for part in ragged])
    return Ragged(np.concatenate([part.values for part in ragged]), offsets_of(lengths))
