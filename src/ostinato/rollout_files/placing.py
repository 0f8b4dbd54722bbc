"""A written file appears whole or not at all, and never in the place of another unasked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ostinato.buffer.durable import file_in_place
from ostinato.errors import ConfigError


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise `ConfigError` when `path` is no name, a directory, or a file that may not be overwritten."""
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r} cannot be the name of a file")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, expected the name of a file to write")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists; choose another name, or overwrite it with --force")


def refuse_own_source(source: Path, path: Path) -> None:
    """Raise `ConfigError` when what is written to `path` would take the place of what it is made of."""
    if path.exists() and source.exists() and path.samefile(source):
        raise ConfigError(f"{path} is what is read; write to another name, what was logged cannot be logged again")


@contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path`, synced to disk, when the block ends well.

    Raises `ConfigError` as `refuse_existing` does.
    """
    refuse_existing(path, overwrite=overwrite)
    with file_in_place(path) as handle:
        with open(os.dup(handle), "wb") as file:
            yield file
        refuse_existing(path, overwrite=overwrite)
