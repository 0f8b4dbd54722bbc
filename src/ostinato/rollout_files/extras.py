"""Extra columns in text: what a foreign value can become, and a form that brings dtype and shape back exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.ragged import Extra, Ragged, offsets_of
from ostinato.rollout_files.leaves import exact_array, fits, leaves_of

LONGEST_TEXT = 200
"""Characters; a longer text is no column (numpy pads every row to the longest), but a thing to look up by an id."""

LARGEST_ENTRY = 1 << 31
"""Bytes, of a row of an extra column or an entry of a ragged one."""

PLAIN_KINDS = "biufU"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of an extra column stand in a file: dtype, shape of a row (ragged: of an entry), ragged or not."""

    dtype: str
    shape: tuple[int, ...]
    ragged: bool

    @classmethod
    def of(cls, name: str, column: Extra) -> Layout:
        """The layout of a column. Raises `DataError` for dtypes with fields and ragged rows of empty entries."""
        values, ragged = (column.values, True) if isinstance(column, Ragged) else (column, False)
        if values.dtype.fields or values.dtype.hasobject:
            raise DataError(f"extra column {name!r} is {values.dtype}, files hold columns without fields or objects")
        if ragged and 0 in values.shape[1:]:
            raise DataError(f"extra column {name!r} has entries of shape {values.shape[1:]}, nothing to write")
        return cls("U" if values.dtype.kind == "U" else native(values).dtype.str, values.shape[1:], ragged)

    @property
    def plain(self) -> bool:
        """Whether JSON and Parquet have such values; others are held as their bytes."""
        dtype = np.dtype(self.dtype)
        return dtype.kind in PLAIN_KINDS and (dtype.kind == "U" or dtype.itemsize <= 8)

    def written(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values in native byte order, those that are not plain as their bytes: uint8 (..., itemsize)."""
        if self.plain:
            return native(values)
        packed = np.ascontiguousarray(native(values))
        return packed.reshape(-1).view(np.uint8).reshape(*packed.shape, packed.dtype.itemsize)

    def restored(self, values: Any, count: int) -> NDArray[Any]:
        """Inverse of `written` for `count` rows (ragged: entries), from anything numpy takes."""
        if self.plain:
            return np.asarray(values, np.dtype(self.dtype)).reshape(count, *self.shape)
        item = np.dtype(self.dtype).itemsize
        packed = np.ascontiguousarray(np.asarray(values, np.uint8)).reshape(-1)
        return np.frombuffer(packed.tobytes(), self.dtype, len(packed) // max(item, 1)).reshape(count, *self.shape)


def native(values: NDArray[Any]) -> NDArray[Any]:
    """The values in this machine's byte order, in which files hold them."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def typed(layout: Layout, column: Extra, row: int) -> dict[str, Any]:
    """One row of a column as an object of its own: {"dtype", "shape", "ragged", "values"}."""
    # A slice, not the row itself: numpy shortens a text of bytes that stands alone.
    values = column.row(row) if isinstance(column, Ragged) else column[row : row + 1]
    plain = layout.written(values).tolist()
    return {
        "dtype": layout.dtype,
        "shape": list(layout.shape),
        "ragged": layout.ragged,
        "values": plain if layout.ragged else plain[0],
    }


@dataclass(slots=True)
class ExtraSurvey:
    """What all lines of a file say about one extra column."""

    layouts: set[Layout] = field(default_factory=set)
    lines: int = 0
    reason: str | None = None

    def see(self, value: Any) -> None:
        """Take in the value of one more line."""
        self.lines += 1
        if self.reason is None:
            try:
                self.layouts.add(layout_of_value(value))
            except DataError as error:
                self.reason = str(error)

    def settled(self, lines: int) -> Layout:
        """The layout of the column, given the number of lines. Raises `DataError` when it cannot be one."""
        if self.reason is not None:
            raise DataError(self.reason)
        if self.lines != lines:
            raise DataError(f"on {self.lines} of {lines} lines")
        found = self.layouts - {EMPTY} or {Layout("<f8", (), True)}
        dtypes = [np.dtype(layout.dtype) for layout in found]
        if len({(layout.shape, layout.ragged) for layout in found}) > 1 or (
            len(found) > 1 and not {dtype.kind for dtype in dtypes} <= {"i", "f"}
        ):
            raise DataError("its values differ in kind or shape from line to line")
        layout = next(iter(found))
        # Whole numbers may stand among fractions.
        return layout if len(found) == 1 else replace(layout, dtype=np.result_type(*dtypes).str)


EMPTY = Layout("<f8", (-1,), True)
"""An empty list: of any kind and shape."""


def layout_of_value(value: Any) -> Layout:
    """The layout a JSON value suggests; a list is a ragged row whatever its length. Raises `DataError`."""
    if is_typed(value):
        return _checked(value)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise DataError(f"a text of more than {LONGEST_TEXT} characters")
    if value == []:
        return EMPTY
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.empty((), object)
    kind = array.dtype.kind
    if kind not in PLAIN_KINDS or array.dtype == np.uint64 or not fits(kind, leaves_of(value)):
        raise DataError(
            {dict: "an object", list: "a mixed list", type(None): "null"}.get(type(value), "no column value")
        )
    dtype = "U" if array.dtype.kind == "U" else array.dtype.str
    return Layout(dtype, array.shape[1:], ragged=array.ndim > 0)


def column_of_values(layout: Layout, values: Sequence[Any]) -> Extra:
    """The column of one value a line. Raises `DataError` when a value does not fit the layout."""
    plain = [value["values"] if is_typed(value) else value for value in values]
    held = np.dtype(layout.dtype if layout.plain else np.uint8)
    try:
        if not layout.ragged:
            return layout.restored(exact_array(plain, held), len(plain))
        if not all(isinstance(row, list) for row in plain):
            raise DataError("a ragged row is no list")
        flat = [entry for row in plain for entry in row]
        return Ragged(layout.restored(exact_array(flat, held), len(flat)), offsets_of([len(row) for row in plain]))
    except DataError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"does not fit {layout.dtype} {layout.shape}: {error}") from None


def is_typed(value: Any) -> bool:
    """Whether a JSON value is a row as `typed` writes it."""
    return isinstance(value, Mapping) and value.keys() >= {"dtype", "shape", "ragged", "values"}


def _checked(value: Mapping[str, Any]) -> Layout:
    """The layout of a typed row whose values fit it. Raises `DataError`."""
    try:
        dtype, shape = np.dtype(value["dtype"]), tuple(int(length) for length in value["shape"])
        if dtype.hasobject or dtype.fields or min(shape, default=0) < 0 or not isinstance(value["dtype"], str):
            raise ValueError(f"no dtype and shape of a column: {value['dtype']!r}, {value['shape']!r}")
        if math.prod(max(length, 1) for length in shape) * max(dtype.itemsize, 1) > LARGEST_ENTRY:
            raise ValueError(f"an entry of shape {shape} is larger than {LARGEST_ENTRY} bytes")
        layout = Layout(value["dtype"], shape, bool(value["ragged"]))
        column_of_values(layout, [value])
    except DataError:
        raise
    except (TypeError, ValueError, SyntaxError, OverflowError) as error:
        raise DataError(str(error)) from None
    return layout
