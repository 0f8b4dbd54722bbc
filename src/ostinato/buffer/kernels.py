"""Copying many spans at once: with numba one memcpy a span, with numpy one slice a span. Same results.

numba is the optional extra `fast`. Its kernels let go of the interpreter lock and use no numba threading layer, so any
number of threads may call them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, MissingExtraError
from ostinato.rollouts import TOKEN_COLUMNS, Rollouts
from ostinato.setting_checks import check_whole

Int = NDArray[np.int64]

LAST_STEP = np.iinfo(np.int64).max

MOST_THREADS = 1024

COMPILED: list[Any] = []
"""`compiled_tree`, once a buffer has compiled kernels: nothing else brings numba in."""

Columns = Mapping[str, NDArray[Any]]
"""C-contiguous arrays of equal length by name: the token columns of `Rollouts`, or those of an arena."""


class Blocks:
    """Numbered blocks of memory, each an array whose items, along its first axis, are `item_bytes` long."""

    def __init__(self, item_bytes: int) -> None:
        self.item_bytes = item_bytes
        self.arrays: list[NDArray[Any] | None] = []
        self.addresses: Int = np.zeros(4, np.int64)

    def __setstate__(self, state: dict[str, Any]) -> None:  # a copy's memory is elsewhere
        self.__dict__.update(state)
        for number, array in enumerate(self.arrays):
            self.put(number, array)

    @classmethod
    def of(cls, array: NDArray[Any]) -> Blocks:
        """One block: this C-contiguous array."""
        blocks = cls(item_bytes(array.dtype, array.shape[1:]))
        blocks.put(0, array)
        return blocks

    def put(self, number: int, array: NDArray[Any] | None) -> None:
        """Set or free block `number`."""
        if number == len(self.arrays):
            self.arrays.append(None)
            if number == len(self.addresses):
                self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)])
        self.arrays[number] = array
        self.addresses[number] = 0 if array is None else address(array)


class Spans(Protocol):
    """Spans by handle: `spans` int64 (4, handles), Fortran order, are block, start, length, nothing."""

    spans: Int
    blocks: dict[str, Blocks]


class Stored(Protocol):
    """Where rollouts lie: what follows the prompt, its mask where that is kept, and the prompt."""

    @property
    def tokens(self) -> Spans: ...

    @property
    def masks(self) -> Spans: ...

    @property
    def prompt_spans(self) -> Spans: ...


class Drawn(NamedTuple):
    """Rows of a table as they stood before they were drawn, and what a draw counts.

    `row`: columns by name, (n,). `uses`, `since`, `staleness`, `residence` int64 (n,): uses before, repeats counted in
    order, train steps since the last one, -1: never, since the oldest weights, since insertion. `sums`: what `tally`
    names. `by_source`: rows of each source.
    """

    row: dict[str, NDArray[Any]]
    uses: Int
    since: Int
    staleness: Int
    residence: Int
    sums: NDArray[np.float64]
    by_source: Int


class Departed(NamedTuple):
    """Rows that left: uses and tokens, (n,), and the handles of their payload, (handle columns, n)."""

    uses: Int
    lengths: NDArray[np.int32]
    handles: Int


class Exchanged(NamedTuple):
    """What an exchange did.

    `departed` int64 (6, rows that left): uses, tokens, handles, the first `unused` of prompts nobody uses any more, and
    the first `slabs` that tokens left, with how many; -1: the handles are still to be released and the payload to be
    filled in. `first`: the first live row. The first `placed` rows came to the open slab, with `items`. `shared`: rows
    that use the given prompt now, 0: theirs is still to be stored. `slab`, `gone`: the first of those slabs,
    and the tokens that left it.
    """

    departed: Int
    first: int
    slabs: int
    unused: int
    placed: int
    items: int
    shared: int
    slab: int
    gone: int


class Apart:
    """Rollouts whose token rows stand apart, as their maker gave them, and whose other columns stand in a record.

    `record`: the row columns and offsets, without tokens. `given`: the rows of tokens, masks and log-probs, and values
    of row columns, which are to be written to the addresses `targets`, as the `kinds` that `compiled_given` numbers.
    `rows` (3, n) and `columns` (row columns): addresses. `source`: the name of their data set. `one_version`: the
    newest weights are the oldest.
    """

    def __init__(self, record: Rollouts, one_version: bool, columns: Int, kinds: Int, targets: Int) -> None:
        self.record, self.one_version, self.columns = record, one_version, columns
        self.kinds, self.targets = kinds, targets
        self.rows = np.empty((len(TOKEN_COLUMNS), len(record)), np.int64)
        self.given: tuple[Any, ...] = ()
        self.source = ""

    def packed(self, *names: str, first: int = 0) -> Columns:
        """Token columns from rollout `first` on, one row after the other; no names: all."""
        rows = dict(zip(TOKEN_COLUMNS, self.given, strict=False))
        return {name: np.concatenate(rows[name][first:]) for name in names or rows}


class TableBlocks(Protocol):
    """The scalar columns of a buffer, by name and in blocks of one dtype."""

    sources: tuple[str, ...]
    handle_names: tuple[str, ...]
    blocks: dict[str, NDArray[Any]]

    @property
    def span(self) -> int: ...

    @property
    def first(self) -> int: ...

    def __getitem__(self, name: str) -> NDArray[Any]: ...

    def place(self, name: str) -> int:
        """Where a column stands in its block."""

    def gather(self, rows: Int) -> dict[str, NDArray[Any]]:
        """All columns of the given rows, a copy."""

    def named(self, blocks: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Columns by name, out of blocks of this layout."""


class Kernels(Protocol):
    """What the buffer needs done to spans. Positions and lengths count items, int64 (n,); spans never overlap.

    `exchanges`: whether `exchange` is worth a try.
    """

    name: str
    exchanges: bool

    def copy(
        self, to: Blocks, to_block: Int, to_start: Int, of: Blocks, of_block: Int, of_start: Int, lengths: Int
    ) -> None:
        """Copy spans from blocks to blocks."""

    def put(self, of: Spans, column: str, handles: Int, array: NDArray[Any], starts: Int) -> None:
        """Copy spans of a C-contiguous array to where the spans of these handles are."""

    def get(self, array: NDArray[Any], starts: Int, of: Spans, column: str, handles: Int) -> None:
        """Copy spans, by handle, to a C-contiguous array."""

    def enter(
        self, of: Spans, handles: Int, sources: Columns, starts: Int, lengths: Int, slab: int, place: int, room: int
    ) -> int:
        """Put spans one after the other into a slab from `place` on: their items; -1, not done, beyond `room` items."""

    def leave(self, of: Spans, handles: Int) -> tuple[int, int]:
        """Mark spans as free when all stand in one slab: that slab and their items, otherwise, not done, (-1, 0)."""

    def get_packed(self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int]) -> None:
        """Copy rollouts, by the handles in `row`, to token columns (L,) that they fill from `starts` on, ascending."""

    def get_padded(
        self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int], lengths: Int, token: int
    ) -> None:
        """Copy rollouts of these lengths to token columns (n, width), rollout i to row i from column `starts[i]` on.

        What stands beside them: tokens are `token`, the others 0.
        """

    def append(
        self, table: TableBlocks, start: int, rollouts: Rollouts, ids: Int, settled: Mapping[str, float]
    ) -> None:
        """Write new rows from `start` on: columns and ids of rollouts, `settled` columns, never used, no handles."""

    def exchange(
        self,
        table: TableBlocks,
        rollouts: Rollouts,
        ids: Int,
        settled: Mapping[str, float],
        of: Stored,
        users: Int,
        handles: Int,
        gap: tuple[int, int, int, int, int],
        apart: Apart | None = None,
    ) -> Exchanged | None:
        """`append` plain rollouts of one group, `kill` the oldest and fill in payload; None, not done: no such way.

        That is where `inspect`, at the insert step that is `settled`, would raise or give anything but None, too.
        `users` of each prompt. `handles` for the new spans, none: as many rows leave and hand on theirs. `gap`: the
        first live row, the open slab, the place there, the room behind it, and a prompt that may be theirs (-1).
        `apart`: where the token rows are, if not in `rollouts`.
        """

    def kill(self, table: TableBlocks, rows: Int, first: int) -> tuple[Departed, int]:
        """Mark rows as dead: what is left to do about them, and the first live row from `first` on (span: none)."""

    def draw(self, table: TableBlocks, rows: Int, train_step: int, correct_above: float) -> Drawn | None:
        """Gather rows and count them as drawn, repeats one by one; None, and nothing is done, when one is not live."""

    def inspect(self, rollouts: Rollouts, train_step: int = LAST_STEP) -> NDArray[np.int8] | None:
        """How each rollout is to be stored, (n,), by the numbers in `tally`; None: all are plain.

        Raises `FloatingPointError` when a log-prob, a reward, its mean or deviation, or an advantage is not finite,
        a policy version is above the train step or the oldest above the newest, or offsets and prompt lengths do not
        fit the tokens.
        """

    def all_equal(self, array: NDArray[Any], starts: Int, lengths: Int) -> bool:
        """Whether all spans of a C-contiguous array, of which there is one at least, hold the same bytes."""


def address(array: NDArray[Any]) -> int:
    """Where the memory of an array begins."""
    return int(array.__array_interface__["data"][0])


def item_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Bytes of one item of this dtype and shape."""
    return dtype.itemsize * math.prod(shape)


def kernels(kind: str = "auto", threads: int = 1) -> Kernels:
    """`kind`: "numba", "numpy", or "auto": numba where it is installed. `threads` that copy at once, numba only.

    Raises `ConfigError` for another kind or fewer than 1 thread, `MissingExtraError` for numba that is not installed
    or cannot be imported.
    """
    if not isinstance(kind, str) or kind not in ("auto", "numba", "numpy"):
        raise ConfigError(f"kernels must be 'auto', 'numba' or 'numpy', got {kind!r}")
    check_whole("threads", threads, least=1)
    if threads > MOST_THREADS:
        raise ConfigError(f"threads must be at most {MOST_THREADS}, got {threads}")
    compiled = _numba_kernels() if kind != "numpy" else None
    if compiled is not None:
        return compiled(int(threads))
    if kind == "numba":
        raise MissingExtraError("numba", "fast")
    from ostinato.buffer.numpy_kernels import NumpyKernels

    return NumpyKernels()


@cache
def _numba_kernels() -> Callable[[int], Kernels] | None:
    try:
        from ostinato.buffer import compiled_tree
        from ostinato.buffer.numba_kernels import NumbaKernels
    except (ImportError, OSError, AttributeError, RuntimeError):  # as broken installations of numba or llvmlite raise
        return None
    COMPILED.append(compiled_tree)
    return NumbaKernels
