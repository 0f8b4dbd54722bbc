"""How far readers have drained each ring: what a producer that waits for them looks at.

A reader that asks producers to wait has a file `reader-NAME`: its lock says that it lives, the word `slot` which rows
of that ring it has drained. A dead reader holds nobody back.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ostinato.errors import RunError
from ostinato.sharing.directory import MAX_RINGS, RingDirectory, mapped
from ostinato.sharing.failures import WaitTimeout
from ostinato.sharing.locks import FileLock

EVERYTHING = np.iinfo(np.int64).max
TAKE_WAIT_S = 1.0


class OwnMark:
    """The reader's side: `rows[slot]` is the first row of that ring that it has not drained."""

    def __init__(self, directory: RingDirectory, name: str) -> None:
        path = directory.path / f"reader-{name}"
        with directory.locked():
            self._life = FileLock(path)
            try:
                self._life.take(TAKE_WAIT_S)
            except WaitTimeout:
                raise RunError(f"a reader named {name!r} lives already in {directory.path}") from None
            path.write_bytes(bytes(8 * MAX_RINGS))
            self.rows = mapped(path, writable=True, size=8 * MAX_RINGS).view(np.int64)

    def announce(self, directory: RingDirectory) -> None:
        """Tell the producers, once `rows` says where this reader begins."""
        with directory.locked():
            directory.announce(ring=False)

    def close(self) -> None:
        """Hold nobody back any more."""
        self._life.close()


class ReaderMarks:
    """The producer's side, for one ring."""

    def __init__(self, directory: RingDirectory, slot: int) -> None:
        self._directory = directory
        self._slot = slot
        self._seen = -1
        self._lowest = 0
        self._slowest = ""

    def lowest(self) -> int:
        """The first row that some living reader had not drained when last looked at: it can only have risen since."""
        return self._lowest if self._directory.changes[1] == self._seen else self.fresh()

    def fresh(self) -> int:
        """The same, looked at now; very large when no reader asks to be waited for."""
        self._seen = self._directory.changes[1]
        self._lowest, self._slowest = EVERYTHING, ""
        for path in self._directory.readers():
            row = self._drained(path)
            if row < self._lowest:
                self._lowest, self._slowest = row, path.name.removeprefix("reader-")
        return self._lowest

    def slowest(self) -> str:
        """For messages: who had drained least."""
        return f"reader {self._slowest!r}"

    def _drained(self, path: Path) -> int:
        life = FileLock(path)
        try:
            if life.is_free():
                return EVERYTHING
            with open(path, "rb") as file:
                word = os.pread(file.fileno(), 8, 8 * self._slot)
            return int.from_bytes(word, "little") if len(word) == 8 else 0
        finally:
            life.close()
