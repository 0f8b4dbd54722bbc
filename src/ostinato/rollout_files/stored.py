"""Rollouts wherever they are kept: a buffer's snapshot, a checkpoint, a journal, a JSONL or Parquet file. Read-only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import Columns, ReplayBuffer
from ostinato.buffer.journal import JournaledBuffer
from ostinato.buffer.journal.log import ABOUT
from ostinato.buffer.snapshot import MAGIC, load_arrays
from ostinato.errors import CheckpointError, DataError
from ostinato.rollout_files.files import ENDINGS, open_rollouts
from ostinato.rollout_files.settings import ReadReport, ReadRules, RolloutFile
from ostinato.rollouts import ROW_COLUMNS, Rollouts, concatenate
from ostinato.telemetry import read_arrays

BOOK_COLUMNS = ("rollout_id", "insert_step", "uses", "last_use_step", "priority")
UNBOUNDED = 1 << 53
CHUNK_ROLLOUTS, CHUNK_TOKENS = 1024, 1 << 22
CHECKPOINT_FILE = "buffer.npz"


class Stored(Protocol):
    """n rollouts, oldest first, and what is known about each."""

    kind: str
    report: ReadReport | None

    def __len__(self) -> int: ...

    @property
    def train_step(self) -> int:
        """The latest train step it knows of."""

    @property
    def nbytes(self) -> int:
        """Bytes of the rollouts in memory."""

    def columns(self) -> dict[str, NDArray[Any]]:
        """Row columns and `length`, each (n,); of a buffer also `BOOK_COLUMNS`."""

    def parts(self) -> Iterator[Rollouts]:
        """All rollouts, a chunk at a time."""

    def select(self, rows: Sequence[int]) -> Rollouts:
        """These rows, in this order; at least one."""


class StoredBuffer:
    """What one buffer, or the shards of one, held."""

    report: ReadReport | None = None

    def __init__(self, kind: str, shards: Sequence[ReplayBuffer]) -> None:
        self.kind, self._shards = kind, tuple(shards)
        self._columns = [_copied(shard.columns) for shard in self._shards]
        self._order = np.argsort(np.concatenate([own["rollout_id"] for own in self._columns]), kind="stable")
        self._owner = np.repeat(np.arange(len(self._shards)), [len(shard) for shard in self._shards])[self._order]
        self._rank = np.concatenate([np.arange(len(shard)) for shard in self._shards])[self._order]

    def __len__(self) -> int:
        return len(self._order)

    @property
    def train_step(self) -> int:
        """The latest train step the buffer had been told."""
        return max(shard.train_step for shard in self._shards)

    @property
    def nbytes(self) -> int:
        """Bytes of the rollouts in a buffer, what they share once."""
        return sum(shard.nbytes for shard in self._shards)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Row columns, `length` and `BOOK_COLUMNS`."""
        return {name: np.concatenate([own[name] for own in self._columns])[self._order] for name in self._columns[0]}

    def parts(self) -> Iterator[Rollouts]:
        """All rollouts, a chunk at a time."""
        tokens = np.cumsum(self.columns()["length"]) if len(self) else np.empty(0, np.int64)
        first = 0
        while first < len(self):
            before = tokens[first - 1] if first else 0
            fits = int(np.searchsorted(tokens, before + CHUNK_TOKENS, "right"))
            last = max(first + 1, min(fits, first + CHUNK_ROLLOUTS))
            yield self.select(range(first, last))
            first = last

    def select(self, rows: Sequence[int]) -> Rollouts:
        """These rows, in this order; at least one."""
        wanted = np.asarray(rows, np.int64)
        owner, drawn = self._owner[wanted], list[Rollouts]()
        for index in np.unique(owner):
            drawn.append(_rollouts_of(self._shards[index], self._rank[wanted[owner == index]]))
        where = np.argsort(np.argsort(owner, kind="stable"), kind="stable")
        return drawn[0] if len(drawn) == 1 else concatenate(drawn).select(where)


class StoredFile:
    """What a file of rollouts holds; its ages are counted from the newest train step in it."""

    def __init__(self, file: RolloutFile) -> None:
        self.kind: str = file.format
        self.report: ReadReport | None = file.report
        self._file = file
        self._columns: dict[str, NDArray[Any]] = {}
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._file)

    @property
    def train_step(self) -> int:
        """The newest train step or policy version."""
        columns = self.columns()
        return int(max(columns[name].max(initial=0) for name in ("birth_step", "policy_version_max")))

    @property
    def nbytes(self) -> int:
        """Bytes of the rollouts in memory."""
        self.columns()
        return self._nbytes

    def columns(self) -> dict[str, NDArray[Any]]:
        """Row columns and `length`; the first call reads the file."""
        if not self._columns:
            empty = Rollouts.from_completions([], [], [])
            found: dict[str, list[NDArray[Any]]] = {name: [getattr(empty, name)] for name in ROW_COLUMNS}
            found["length"] = [empty.lengths]
            for part in self._file.parts():
                for name in ROW_COLUMNS:
                    found[name].append(getattr(part, name))
                found["length"].append(part.lengths)
                self._nbytes += part.nbytes
            self._columns = {name: np.concatenate(arrays) for name, arrays in found.items()}
        return self._columns

    def parts(self) -> Iterator[Rollouts]:
        """All rollouts, a chunk at a time."""
        return self._file.parts()

    def select(self, rows: Sequence[int]) -> Rollouts:
        """These rows, in this order; at least one."""
        wanted, first = np.asarray(rows, np.int64), 0
        found: list[Rollouts] = []
        place: list[NDArray[np.int64]] = []
        for part in self._file.parts():
            here = np.flatnonzero((wanted >= first) & (wanted < first + len(part)))
            if len(here):
                found.append(part.select(wanted[here] - first))
                place.append(here)
            first += len(part)
        return concatenate(found).select(np.argsort(np.concatenate(place), kind="stable"))


def open_stored(path: Path, rules: ReadRules | None = None) -> Stored:
    """Open what keeps rollouts, without changing anything.

    `path`: a snapshot, the buffer.npz of a checkpoint or its directory, a journal directory (also one that a process is
    writing), or a .jsonl or .parquet file, read under `rules`. Raises `DataError` when there is no such thing,
    `CheckpointError` when it is damaged.
    """
    if "\0" in str(path):
        raise DataError(f"{str(path)!r} cannot be the name of a file")
    if path.is_dir():
        if (path / CHECKPOINT_FILE).exists():
            return _of_checkpoint(path / CHECKPOINT_FILE)
        if (path / ABOUT).exists():
            return _of_journal(path)
        raise DataError(f"{path} holds neither a checkpoint nor a journal")
    if not path.exists():
        raise DataError(f"{path} does not exist")
    with open(path, "rb") as file:
        head = file.read(len(MAGIC))
    if head == MAGIC:
        buffer = _buffer()
        buffer.load(path)
        return StoredBuffer("snapshot", [buffer])
    if path.suffix == ".npz":
        return _of_checkpoint(path)
    if path.suffix in ENDINGS:
        return StoredFile(open_rollouts(path, rules))
    raise DataError(f"{path} is neither a buffer snapshot nor a .jsonl, .parquet or .npz file")


class _These:
    """Draws the rollouts of the ranks it was told, 0 the oldest."""

    repeats, decides_size = False, True
    ranks: NDArray[np.int64] = np.empty(0, np.int64)

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
        return columns.select(self.ranks)


def _buffer(capacity: int = UNBOUNDED, capacity_bytes: int | None = None) -> ReplayBuffer:
    return ReplayBuffer(capacity, capacity_bytes=capacity_bytes, sampler=_These(), kernels="numpy")


def _rollouts_of(buffer: ReplayBuffer, ranks: NDArray[np.int64]) -> Rollouts:
    """A copy of the rollouts. The buffer, ours alone, counts the use; its columns were copied before."""
    assert isinstance(buffer.sampler, _These)
    buffer.sampler.ranks = ranks
    return buffer.sample(None, train_step=buffer.train_step, rng=np.random.default_rng(0)).rollouts


def _copied(columns: Columns) -> dict[str, NDArray[Any]]:
    names = [name for name in ROW_COLUMNS if name != "source"]
    copied = {name: columns[name].copy() for name in (*names, "length", *BOOK_COLUMNS)}
    sources = np.array(columns.sources or [""], np.str_)
    return copied | {"source": sources[columns["source_code"]]}


def _of_checkpoint(path: Path) -> StoredBuffer:
    try:
        arrays = read_arrays(path)
    except Exception as error:  # a damaged file can make its reader raise anything
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    prefixes = sorted({name.partition("/")[0] for name in arrays if "/" in name}, key=lambda p: (len(p), p))
    shards = []
    for prefix in [f"{prefix}/" for prefix in prefixes] or [""]:
        buffer = _buffer()
        try:
            buffer.load_state_arrays({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        shards.append(buffer)
    return StoredBuffer("checkpoint", shards)


def _of_journal(directory: Path) -> StoredBuffer:
    given: Mapping[str, Any] = load_arrays(directory / ABOUT)[0]
    try:
        capacity, capacity_bytes = given["given"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{directory / ABOUT} does not say the capacity of its buffer") from None
    while True:
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
        try:
            return StoredBuffer("journal", [_replayed(directory, names, _buffer(capacity, capacity_bytes))])
        except (CheckpointError, OSError):
            # A process that writes it may have begun the log anew meanwhile.
            if names == sorted(name for name in os.listdir(directory) if not name.startswith(".")):
                raise


def _replayed(directory: Path, names: Sequence[str], buffer: ReplayBuffer) -> ReplayBuffer:
    # Links to its files: the journal may be another process's, and its own lock is not ours to take.
    with tempfile.TemporaryDirectory(prefix="ostinato-") as links:
        for name in names:
            os.symlink((directory / name).resolve(), Path(links) / name)
        try:
            # Under the capacity it was begun with, opening a journal only reads.
            with JournaledBuffer(buffer, links):
                return buffer
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(links, str(directory))) from None
