"""One record of the journal as bytes: a JSON line and arrays, inside a frame with length, sequence number and CRC32.

frame    magic (4 bytes), CRC32 of all that follows, sequence number, length of the payload
payload  length of the JSON, JSON (operation, train step, names, dtypes and shapes), arrays at multiples of 16
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.snapshot import dtype_of, dtype_text
from ostinato.errors import CheckpointError

Bytes: TypeAlias = bytes | memoryview

FRAME = struct.Struct("<4sIQQ")
MAGIC = b"\xf5REC"
COUNT = struct.Struct("<I")
ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Record:
    """What one operation did to a buffer: its name, the train step and arrays by name."""

    operation: str
    train_step: int
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The arrays whose name begins with `prefix`, without it."""
        return {name[len(prefix) :]: array for name, array in self.arrays.items() if name.startswith(prefix)}


def encode(record: Record, sequence: int) -> list[Bytes]:
    """The frame of a record, in parts that share the memory of its arrays. Raises `DataError` for objects."""
    shapes = [(name, _text(array.dtype, name), array.shape) for name, array in record.arrays.items()]
    about = json.dumps([record.operation, record.train_step, shapes], separators=(",", ":")).encode()
    parts: list[Bytes] = [COUNT.pack(len(about)), about]
    position = COUNT.size + len(about)
    for array in record.arrays.values():
        if array.nbytes:
            padding = -position % ALIGNMENT
            parts += [bytes(padding), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
            position += padding + array.nbytes
    rest = FRAME.pack(MAGIC, 0, sequence, position)[8:]
    crc = zlib.crc32(rest)
    for part in parts:
        crc = zlib.crc32(part, crc)
    return [MAGIC + struct.pack("<I", crc) + rest, *parts]


def decode(payload: NDArray[np.uint8], where: str) -> Record:
    """Inverse of `encode` for a payload whose CRC was right; the arrays are read-only views of it.

    Raises `CheckpointError`, which says `where` it stood, when it makes no sense, as after a change of the format.
    """
    try:
        (length,) = COUNT.unpack(payload[: COUNT.size].data)
        position = COUNT.size + length
        operation, train_step, shapes = json.loads(payload[COUNT.size : position].tobytes())
        arrays: dict[str, NDArray[Any]] = {}
        for name, text, shape in shapes:
            dtype = dtype_of(text)
            nbytes = dtype.itemsize * prod(shape)
            position += -position % ALIGNMENT if nbytes else 0
            array = (
                payload[position : position + nbytes].view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype)
            )
            array.flags.writeable = False
            arrays[name] = array
            position += nbytes
    except (ValueError, TypeError, KeyError, struct.error, RecursionError) as error:
        raise CheckpointError(f"{where}: a record makes no sense: {error}") from error
    return Record(operation, train_step, arrays)


@lru_cache(maxsize=256)
def _text(dtype: np.dtype[Any], name: str) -> Any:
    return dtype_text(name, dtype)
