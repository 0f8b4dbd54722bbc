"""Snapshot files: a JSON header and named arrays in one file, whole or absent, checked byte by byte, no pickle.

    head      64 bytes: magic, format, length of the file, place, length and CRC32 of the index, CRC32 of the head
    sections  the bytes of one array after the other, no padding, native layout of the dtype named in the index
    index     JSON: the header, and of each section its name, dtype, shape, offset, bytes and CRC32

Every byte is covered by a check: sections and index by their CRC32, the head by its own, and the length of the file by
the head. A file is read with plain reads, never mapped: a mapped file that is cut short kills the process.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.durable import file_in_place, read_at, write_all
from ostinato.errors import CheckpointError, DataError

FORMAT = 1
MAGIC = b"\x89OST\r\n\x1a\n"
HEAD = struct.Struct("<8sIQQQI20xI")
BLOCK_BYTES = 1 << 20  # a checked block is still in the cache when it is written or used


class OtherFormatError(CheckpointError):
    """The file is sound, and of another version of this package: not to be taken for damaged."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """One array given piece by piece, so that it never stands in memory as a whole.

    `pieces` are arrays (k, *row_shape) of dtype `dtype`; each may be freed before the next one is asked for.
    """

    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Section:
    """Where one array stands in a file, in bytes from its beginning, and what it is."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc: int


def save_arrays(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any] | Chunks]) -> int:
    """Write a snapshot in the place of `path`; returns its bytes.

    Written beside, synchronised with the disk, then renamed: a kill, a power loss or a full disk leaves the old file.
    Memory beyond the arrays: one piece of a `Chunks`, or 1 MiB of an array that is not contiguous. Raises `DataError`
    for arrays whose dtype a file cannot hold and pieces that differ from what was announced, `OSError` when the disk
    refuses.
    """
    with file_in_place(Path(path)) as handle:
        os.lseek(handle, HEAD.size, os.SEEK_SET)
        position, sections = HEAD.size, []
        for name, value in arrays.items():
            section = _write_section(handle, position, name, value)
            position += section.nbytes
            sections.append(_described(name, section))
        index = json.dumps({"header": dict(header), "sections": sections}, separators=(",", ":")).encode()
        write_all(handle, index)
        total = position + len(index)
        os.pwrite(handle, _head(total, position, index), 0)
    return total


def load_arrays(path: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and all arrays of a snapshot. Raises `CheckpointError` when it is damaged, foreign or missing."""
    with SnapshotFile(path) as file:
        return file.header, {name: file.read(name) for name in file.sections}


class SnapshotFile:
    """An open snapshot whose arrays are read one by one, straight into their memory.

    Construction checks head, length and index, `read` the bytes of its section. Each failure is a `CheckpointError`
    that names the file and what is wrong; the file is never changed.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self.path = Path(path)
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise CheckpointError(f"{path} is no regular file, expected a snapshot")
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except (TypeError, ValueError) as error:  # None, a NUL in the name
            raise CheckpointError(f"{path!r} is no path: {error}") from error
        try:
            self.header, self.sections = self._index()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SnapshotFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; arrays already read stay."""
        self._file.close()

    def read(self, name: str, out: NDArray[Any] | Sequence[NDArray[Any]] | None = None) -> NDArray[Any]:
        """One array. `out`: memory to fill, an array or several that hold the section one after the other.

        Returns the first of several. They must be contiguous, of the section's dtype and together of its size
        (`DataError`). Raises `CheckpointError` when the file lacks the array or its bytes are damaged; what stands in
        `out` is then void.
        """
        if name not in self.sections:
            raise CheckpointError(f"{self.path} lacks the array {name!r}, it holds {sorted(self.sections)}")
        section = self.sections[name]
        whole = np.empty(section.shape, section.dtype) if out is None else None
        targets = [whole] if whole is not None else [out] if isinstance(out, np.ndarray) else list(out or ())
        _check_targets(name, section, targets)
        crc, place = 0, section.offset
        for target in targets:
            for block in _byte_blocks(target):
                self._fill(block, place, name)
                crc, place = zlib.crc32(block, crc), place + len(block)
        if crc != section.crc:
            raise CheckpointError(f"{self.path} is damaged: the bytes of {name!r} do not match their CRC32")
        return targets[0] if targets else np.empty(section.shape, section.dtype)

    def read_all(self, memory: Mapping[str, NDArray[Any] | Sequence[NDArray[Any]]]) -> None:
        """`read` many arrays to their memory, two at a time: to check bytes takes longer than to read them."""
        with ThreadPoolExecutor(2, "ostinato-read") as pool:
            for reading in [pool.submit(self.read, name, out) for name, out in memory.items()]:
                reading.result()

    def _fill(self, block: memoryview, place: int, what: str) -> None:
        done = 0
        while done < len(block):
            got = read_at(self._file.fileno(), block[done:], place + done)
            if not got:
                raise CheckpointError(f"{self.path} ends inside {what!r}")
            done += got

    def _index(self) -> tuple[dict[str, Any], dict[str, Section]]:
        size = os.fstat(self._file.fileno()).st_size
        head = self._file.read(HEAD.size)
        if not head or head[: len(MAGIC)] != MAGIC[: len(head)]:
            raise CheckpointError(f"{self.path} is no snapshot: it begins with {head[: len(MAGIC)]!r}")
        if len(head) < HEAD.size:
            raise CheckpointError(f"{self.path} is truncated: {size} bytes, a snapshot has at least {HEAD.size}")
        _, version, total, offset, length, index_crc, head_crc = HEAD.unpack(head)
        if version != FORMAT:
            kind = OtherFormatError if zlib.crc32(head[:-4]) == head_crc else CheckpointError
            raise kind(f"{self.path} has snapshot format {version}, this version reads {FORMAT}")
        if zlib.crc32(head[:-4]) != head_crc:
            raise CheckpointError(f"{self.path} is damaged: its head does not match its CRC32")
        if size != total:
            what = "truncated" if size < total else "longer than it was written"
            raise CheckpointError(f"{self.path} is {what}: {size} bytes, expected {total}")
        if offset + length != total:
            raise CheckpointError(f"{self.path} is damaged: an index of {length} bytes at {offset} of {total}")
        index = bytearray(length)
        self._fill(memoryview(index), offset, "the index")
        if zlib.crc32(index) != index_crc:
            raise CheckpointError(f"{self.path} is damaged: its index does not match its CRC32")
        return self._parsed(bytes(index), offset)

    def _parsed(self, index: bytes, end: int) -> tuple[dict[str, Any], dict[str, Section]]:
        try:
            content = json.loads(index)
            sections = {entry["name"]: _section(entry) for entry in content["sections"]}
            position = HEAD.size
            for name, section in sections.items():
                if section.offset != position:
                    raise ValueError(f"{name!r} stands at {section.offset}, expected {position}")
                position += section.nbytes
            if position != end or not isinstance(content["header"], dict):
                raise ValueError(f"sections end at {position}, the index begins at {end}")
        except (ValueError, TypeError, KeyError, RecursionError, SyntaxError) as error:
            raise CheckpointError(f"{self.path} has an index that makes no sense: {error}") from error
        return content["header"], sections


def dtype_text(name: str, dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON. Raises `DataError` when a file cannot hold it: objects, foreign scalar types."""
    text = np.lib.format.dtype_to_descr(dtype) if not dtype.hasobject else None
    if text is None or dtype_of(json.loads(json.dumps(text))) != dtype:
        raise DataError(f"array {name!r} has dtype {dtype}, which a file cannot hold")
    return text


def dtype_of(text: Any) -> np.dtype[Any]:
    """Inverse of `dtype_text`, also after a passage through JSON. Raises `ValueError` or `TypeError`."""
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(_descr(text))
    if dtype.hasobject:
        raise ValueError(f"dtype {text!r} holds objects")
    return dtype


def _descr(text: Any) -> Any:
    """JSON turns the tuples of a structured dtype into lists."""
    if isinstance(text, str):
        return text
    return [
        (name if isinstance(name, str) else tuple(name), _descr(inner), *map(tuple, shape))
        for name, inner, *shape in text
    ]


def _write_section(handle: int, position: int, name: str, value: NDArray[Any] | Chunks) -> Section:
    chunks = isinstance(value, Chunks)
    dtype, row_shape = value.dtype, value.row_shape if isinstance(value, Chunks) else value.shape[1:]
    dtype_text(name, dtype)
    rows = nbytes = crc = 0
    for piece in value.pieces if isinstance(value, Chunks) else (value,):
        if chunks and (piece.dtype != dtype or piece.shape[1:] != row_shape or not piece.ndim):
            raise DataError(f"a piece of {name!r} is {piece.dtype} {piece.shape}, expected {dtype} (k, *{row_shape})")
        for block in _byte_blocks(piece):
            crc = zlib.crc32(block, crc)
            write_all(handle, block)
        rows, nbytes = rows + (len(piece) if piece.ndim else 0), nbytes + piece.nbytes
    shape = (rows, *row_shape) if chunks else value.shape  # type: ignore[union-attr]
    return Section(dtype, shape, position, nbytes, crc)


def _byte_blocks(array: NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array in C order, at most a block at a time; views where it is contiguous."""
    if not array.nbytes:
        return
    if array.flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), BLOCK_BYTES):
            yield data[start : start + BLOCK_BYTES]
        return
    step = max(1, BLOCK_BYTES // max(1, array.nbytes // len(array)))
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step]).reshape(-1).view(np.uint8).data


def _check_targets(name: str, section: Section, targets: Sequence[NDArray[Any]]) -> None:
    for target in targets:
        if target.dtype != section.dtype or not target.flags.c_contiguous:
            raise DataError(f"memory for {name!r} is {target.dtype}, expected contiguous {section.dtype}")
    given = sum(target.nbytes for target in targets)
    if given != section.nbytes:
        raise DataError(f"memory for {name!r} has {given} bytes, expected {section.nbytes}")


def _described(name: str, section: Section) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": dtype_text(name, section.dtype),
        "shape": section.shape,
        "offset": section.offset,
        "nbytes": section.nbytes,
        "crc": section.crc,
    }


def _section(entry: Mapping[str, Any]) -> Section:
    dtype, shape = dtype_of(entry["dtype"]), tuple(int(length) for length in entry["shape"])
    section = Section(dtype, shape, int(entry["offset"]), int(entry["nbytes"]), int(entry["crc"]))
    count = 1
    for length in shape:
        count *= length
    if min(shape, default=0) < 0 or count * dtype.itemsize != section.nbytes:
        raise ValueError(f"{entry['name']!r} has {section.nbytes} bytes, expected {dtype} {shape}")
    return section


def _head(total: int, offset: int, index: bytes) -> bytes:
    fields = HEAD.pack(MAGIC, FORMAT, total, offset, len(index), zlib.crc32(index), 0)[:-4]
    return fields + struct.pack("<I", zlib.crc32(fields))
