"""How a rollout lies in a ring: one fixed-size record, and spans of bytes that hold its tokens and extra columns."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.ragged import Extra, Ragged
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts, extra_layouts

ALIGNMENT = 64
"""Every span of an added group begins at a multiple of this, so that any dtype may be viewed in place."""

RECORD_NUMBERS = ("row", "source_code", "insert_step", "add_first", "add_rows", "add_byte")
RECORD_COLUMNS = {name: dtype for name, dtype in ROW_COLUMNS.items() if name != "source"}


@dataclass(frozen=True, slots=True)
class PayloadColumn:
    """A column whose rows are spans of bytes. `dtype` and `shape` are those of one item; texts may be of any width."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    ragged: bool

    @property
    def text(self) -> bool:
        """Whether items are strings, whose width may differ from group to group."""
        return self.dtype.kind in "SU"

    @property
    def cells(self) -> int:
        """Scalars in one item."""
        return math.prod(self.shape)


class Layout:
    """The payload columns of rollouts, and the dtype of their record.

    A record holds the row columns (source as a number), the row number, the insert step, which rows were added together
    (`add_first`, `add_rows`, `add_byte`), and for payload column k where its span begins (`start_k`, bytes), how many
    items it has (`count_k`) and the bytes of one scalar (`width_k`): whole words that stand side by side.
    """

    def __init__(self, columns: tuple[PayloadColumn, ...], extras: Mapping[str, str]) -> None:
        self.columns = columns
        self.extras = dict(extras)
        self.cells = np.array([column.cells for column in columns], np.int64)
        spans = [f"{part}_{k}" for part in ("start", "count", "width") for k in range(len(columns))]
        fields: list[tuple[str, np.dtype[Any]]] = [(name, np.dtype(np.int64)) for name in (*spans, *RECORD_NUMBERS)]
        fields += [(name, np.dtype(dtype)) for name, dtype in RECORD_COLUMNS.items()]
        fields.sort(key=lambda field: -field[1].itemsize)
        self.blocks = [_block(fields, word) for word in (np.int64, np.int32, np.int8)]
        """Words that row columns of one width fill: their dtype, the first one's number in a record, the columns."""
        tail = -sum(dtype.itemsize for _, dtype in fields) % 8
        self.record = np.dtype([*fields, ("padding", np.dtype((np.void, tail)))] if tail else fields)

    @classmethod
    def of(cls, rollouts: Rollouts) -> Layout:
        """That of these rollouts."""
        columns = [PayloadColumn(name, np.dtype(dtype), (), True) for name, dtype in TOKEN_COLUMNS.items()]
        for name, column in rollouts.extras.items():
            values = _values(column)
            columns.append(PayloadColumn(name, values.dtype, values.shape[1:], isinstance(column, Ragged)))
        return cls(tuple(columns), extra_layouts(rollouts))

    def to_json(self) -> bytes:
        """For the header of a ring; `from_json` is the inverse."""
        columns = [[c.name, repr(np.lib.format.dtype_to_descr(c.dtype)), list(c.shape), c.ragged] for c in self.columns]
        return json.dumps({"columns": columns, "extras": self.extras}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Layout:
        """Raises `DataError` when the content is no layout."""
        try:
            value = json.loads(content)
            columns = tuple(
                PayloadColumn(name, np.lib.format.descr_to_dtype(ast.literal_eval(descr)), tuple(shape), bool(ragged))
                for name, descr, shape, ragged in value["columns"]
            )
            return cls(columns, value["extras"])
        except (ValueError, KeyError, TypeError, SyntaxError) as error:
            raise DataError(f"the layout of a shared ring is damaged: {error}") from None

    def pieces(self, rollouts: Rollouts) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Values and offsets of each payload column, in order."""
        pieces = [(getattr(rollouts, name), rollouts.offsets) for name in TOKEN_COLUMNS]
        for column in self.columns[len(TOKEN_COLUMNS) :]:
            extra = rollouts.extras[column.name]
            pieces.append((_values(extra), extra.offsets if isinstance(extra, Ragged) else np.arange(len(extra) + 1)))
        return pieces


def _block(fields: list[tuple[str, np.dtype[Any]]], word: type[np.generic]) -> tuple[np.dtype[Any], int, list[str]]:
    """The row columns as wide as this word, which stand side by side, and how many such words stand before them."""
    size = np.dtype(word).itemsize
    names = [name for name, dtype in fields if name in RECORD_COLUMNS and dtype.itemsize == size]
    before = fields[: [name for name, _ in fields].index(names[0])]
    return np.dtype(word), sum(dtype.itemsize for _, dtype in before) // size, names


def _values(column: Extra) -> NDArray[Any]:
    return column.values if isinstance(column, Ragged) else column
