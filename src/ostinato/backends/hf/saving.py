"""One type of error for files that could not be written, and one for those that could not be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostinato.errors import CheckpointError


@contextmanager
def saving(directory: Path) -> Iterator[None]:
    """Raise `OSError`, with its number, where torch, safetensors or tokenizers could not write below `directory`.

    Theirs are of every type; the number stands in their text, or in the error they came from.
    """
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(directory)) from error


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Raise `CheckpointError` for whatever a damaged file below `directory` makes its reader raise."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"checkpoint {directory} cannot be read: {reason}") from error


def _error_number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if found := re.search(r"\(os error (\d+)\)", str(error)):
        return int(found[1])
    return _error_number(error.__context__) if error.__context__ else None
