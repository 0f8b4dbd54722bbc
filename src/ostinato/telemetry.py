"""What a run leaves on disk: metric lines, and files that are either whole or absent."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
    """A fresh directory that takes the place of `path` only when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


class JsonlWriter:
    """Appends one JSON object a line. `position` is the size in bytes so far, for truncation on resume."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115 - closed by close()
        self._file.truncate(min(keep_bytes, path.stat().st_size))

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


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file; a torn last line, left by a kill, is dropped."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines if line.strip()]


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
