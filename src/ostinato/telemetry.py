"""What a run leaves on disk: metric lines, and files that are either whole or absent."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import CheckpointError, DataError

REPLACED = ".replaced"
"""Ending of a directory that was moved aside for its successor."""

METRIC_KEYS = ("event", "compute")
EVALUATION_KEYS = ("sampled_accuracy", "greedy_accuracy")
"""What every metrics line has, and what a line whose event is "evaluation" has besides."""


def write_atomic(path: Path, text: str) -> None:
    """Write a text file so that a reader, a crash or a full disk never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON; NaN and infinity become null, numpy scalars plain numbers."""
    write_atomic(path, json.dumps(_plain(value), indent=1) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as an uncompressed .npz; no pickle."""
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Inverse of `write_arrays`. Raises `OSError`, `ValueError` or `zipfile.BadZipFile` on a damaged file."""
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return dict(archive)


@contextmanager
def directory_in_place(path: Path) -> Iterator[Path]:
    """A fresh directory that takes the place of `path` only when the block ends without an error.

    A killed process may leave hidden directories beside `path`: `remove_unfinished` sees to them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    replaced = temporary.with_name(temporary.name + REPLACED)
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        if path.exists():
            os.replace(path, replaced)
        os.replace(temporary, path)
    except BaseException:
        if replaced.exists() and not path.exists():
            os.replace(replaced, path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def remove_unfinished(parent: Path, pattern: str) -> None:
    """Clear away what killed processes left of `directory_in_place(parent / <pattern>)`; nobody may be writing there.

    A directory that had been moved aside, and not yet been replaced, comes back.
    """
    for left in parent.glob(f".{pattern}.*"):
        name, _, ending = left.name[1:].partition(".")
        if ending.endswith(REPLACED) and not (parent / name).exists():
            os.replace(left, parent / name)
        else:
            shutil.rmtree(left)


class JsonlWriter:
    """Appends one JSON object a line, after the first `keep_bytes` bytes of what is there.

    Raises `CheckpointError`, and then changes nothing, when there are fewer.
    """

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        if size < keep_bytes:
            raise CheckpointError(f"{path} has {size} bytes, the checkpoint expects at least {keep_bytes}")
        self._file = open(path, "ab")  # noqa: SIM115 - closed by close()
        self._file.truncate(keep_bytes)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append and hand over to the operating system, so that a killed run keeps the line."""
        self._file.write(json.dumps(_plain(record)).encode() + b"\n")
        self._file.flush()

    @property
    def position(self) -> int:
        """Bytes in the file."""
        return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_json_object(path: Path, *, required: Sequence[str] = ()) -> dict[str, Any]:
    """One JSON object with at least the keys `required`; the inverse of `write_json`.

    Raises `OSError` when the file cannot be opened and `DataError` when it holds anything else.
    """
    return _object(path.read_bytes(), str(path), required)


def read_jsonl(path: Path, *, skip_bytes: int = 0) -> list[dict[str, Any]]:
    """All whole lines of a metrics file behind its first `skip_bytes`; a torn last line, left by a kill, is dropped.

    Raises `OSError` when the file cannot be opened and `DataError`, which names the line, when one is damaged.
    """
    lines = path.read_bytes()[skip_bytes:].split(b"\n")[:-1]
    return [_metrics_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _metrics_line(line: bytes, where: str) -> dict[str, Any]:
    record = _object(line, where, METRIC_KEYS)
    return _with_keys(record, where, EVALUATION_KEYS) if record["event"] == "evaluation" else record


def _object(content: bytes, where: str, required: Sequence[str]) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where} holds {_kind(value)}, expected an object")
    return _with_keys(value, where, required)


def _with_keys(value: dict[str, Any], where: str, required: Sequence[str]) -> dict[str, Any]:
    missing = [name for name in required if name not in value]
    if missing:
        raise DataError(f"{where} lacks {missing[0]!r}, got the keys {sorted(value)}")
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
