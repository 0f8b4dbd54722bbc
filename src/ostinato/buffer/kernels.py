"""Copying many spans at once: with numba one memcpy a span, with numpy one slice a span. Same results.

numba is the optional extra `fast`. Its kernels let go of the interpreter lock and use no numba threading layer, so any
number of threads may call them at once.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.repeats import occurrence
from ostinato.errors import ConfigError, MissingExtraError
from ostinato.ragged import gather_positions

Int = NDArray[np.int64]


class Blocks:
    """Numbered blocks of memory, each an array whose items, along its first axis, are `item_bytes` long."""

    def __init__(self, item_bytes: int) -> None:
        self.item_bytes = item_bytes
        self.arrays: list[NDArray[Any] | None] = []
        self.addresses: Int = np.zeros(4, np.int64)

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
    """Spans by handle: `spans` int64 (3, handles) are block, start and length; `blocks` the memory of each column."""

    spans: Int
    blocks: dict[str, Blocks]


class TableBlocks(Protocol):
    """The scalar columns of a buffer, by name and in blocks of one dtype."""

    sources: tuple[str, ...]
    blocks: dict[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]: ...

    def place(self, name: str) -> int:
        """Where a column stands in its block."""


class Kernels(Protocol):
    """What the buffer needs done to spans. Positions and lengths count items, int64 (n,); spans never overlap."""

    name: str

    def copy(
        self, to: Blocks, to_block: Int, to_start: Int, of: Blocks, of_block: Int, of_start: Int, lengths: Int
    ) -> None:
        """Copy spans from blocks to blocks."""

    def put(self, to: Blocks, block: Int, place: Int, array: NDArray[Any], starts: Int, lengths: Int) -> None:
        """Copy spans of a C-contiguous array to blocks."""

    def get(self, array: NDArray[Any], starts: Int, of: Spans, column: str, handles: Int) -> None:
        """Copy spans, by handle, to a C-contiguous array."""

    def get_tokens(
        self, out: dict[str, NDArray[Any]], starts: Int, of: Spans, handles: Int, prompts: Spans, prompt_handles: Int
    ) -> None:
        """Copy rollouts to flat token columns: the prompt, whose mask and log-probs are 0, and what follows it."""

    def count_draw(
        self, rows: Int, table: TableBlocks, train_step: int, correct_above: float
    ) -> tuple[Int, NDArray[np.float64], Int]:
        """Count draws of rows in the table's columns `uses` and `last_use_step`, repeats one by one.

        Returns what stood there before, uses and train steps since the last use (-1: never), int64 (2, n); the sums
        that `tally` names; and how many rows came from each source.
        """

    def dirty_prompts(self, mask: Any, logprobs: Any, offsets: Int, prompt_length: Any) -> NDArray[np.bool_] | None:
        """Where a prompt has a true mask or log-probs other than 0, bool (n,); None: nowhere."""

    def all_equal(self, values: NDArray[np.uint8], starts: Int, lengths: Int, item: int) -> bool:
        """Whether all spans of items of `item` bytes certainly hold the same bytes; False may mean: not looked."""


class NumpyKernels:
    """One slice assignment a span."""

    name = "numpy"

    def copy(
        self, to: Blocks, to_block: Int, to_start: Int, of: Blocks, of_block: Int, of_start: Int, lengths: Int
    ) -> None:
        """See `Kernels.copy`."""
        targets: list[Any] = to.arrays
        sources: list[Any] = of.arrays
        for i, a, j, b, n in _lists(to_block, to_start, of_block, of_start, lengths):
            if n:
                targets[i][a : a + n] = sources[j][b : b + n]

    def put(self, to: Blocks, block: Int, place: Int, array: NDArray[Any], starts: Int, lengths: Int) -> None:
        """See `Kernels.put`."""
        targets: list[Any] = to.arrays
        for i, a, b, n in _lists(block, place, starts, lengths):
            if n:
                targets[i][a : a + n] = array[b : b + n]

    def get(self, array: NDArray[Any], starts: Int, of: Spans, column: str, handles: Int) -> None:
        """See `Kernels.get`."""
        sources: list[Any] = of.blocks[column].arrays
        for a, i, b, n in _lists(starts, *of.spans[:, handles]):
            if n:
                array[a : a + n] = sources[i][b : b + n]

    def get_tokens(
        self, out: dict[str, NDArray[Any]], starts: Int, of: Spans, handles: Int, prompts: Spans, prompt_handles: Int
    ) -> None:
        """See `Kernels.get_tokens`."""
        prompt = prompts.spans[2, prompt_handles]
        self.get(out["tokens"], starts, prompts, "values", prompt_handles)
        for name in ("loss_mask", "behavior_logprobs"):
            array = out[name]
            for a, n in _lists(starts, prompt):
                array[a : a + n] = 0
        for name in out:
            self.get(out[name], starts + prompt, of, name, handles)

    def count_draw(
        self, rows: Int, table: TableBlocks, train_step: int, correct_above: float
    ) -> tuple[Int, NDArray[np.float64], Int]:
        """See `Kernels.count_draw`."""
        repeat, last = occurrence(rows), table["last_use_step"][rows]
        since = np.where(repeat > 0, 0, np.where(last < 0, -1, train_step - last))
        before = np.stack([table["uses"][rows] + repeat, since])
        np.add.at(table["uses"], rows, 1)
        table["last_use_step"][rows] = train_step
        new = since == -1
        sums = np.array(
            [
                (train_step - table["policy_version_min"][rows]).sum(),
                since.sum() + np.count_nonzero(new),
                np.count_nonzero(new),
                np.count_nonzero(repeat),
                np.count_nonzero(table["reward"][rows] > correct_above),
                np.count_nonzero(table["group_reward_std"][rows] > 0),
            ],
            np.float64,
        )
        return before, sums, np.bincount(table["source_code"][rows], minlength=len(table.sources))

    def dirty_prompts(self, mask: Any, logprobs: Any, offsets: Int, prompt_length: Any) -> NDArray[np.bool_] | None:
        """See `Kernels.dirty_prompts`."""
        n = len(prompt_length)
        bounds = np.empty(2 * n + 1, np.int64)
        bounds[0::2] = offsets
        bounds[1::2] = offsets[:-1] + prompt_length
        positions, _ = gather_positions(bounds, 2 * np.arange(n))
        dirty = mask[positions] | (logprobs[positions] != 0)
        if not dirty.any():
            return None
        result = np.zeros(n, np.bool_)
        result[np.searchsorted(offsets, positions[dirty], "right") - 1] = True
        return result

    def all_equal(self, values: NDArray[np.uint8], starts: Int, lengths: Int, item: int) -> bool:
        """See `Kernels.all_equal`; to look would cost numpy as much as it could save."""
        return len(starts) == 1


def item_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Bytes of one item of this dtype and shape."""
    return dtype.itemsize * math.prod(shape)


def address(array: NDArray[Any]) -> int:
    """Where the memory of an array begins."""
    return int(array.__array_interface__["data"][0])


def kernels(kind: str = "auto", threads: int = 1) -> Kernels:
    """`kind`: "numba", "numpy", or "auto": numba where it is installed. `threads` that copy at once, numba only.

    Raises `ConfigError` for another kind or fewer than 1 thread, `MissingExtraError` for numba that is not installed.
    """
    if kind not in ("auto", "numba", "numpy"):
        raise ConfigError(f"kernels must be 'auto', 'numba' or 'numpy', got {kind!r}")
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    if kind == "numba" and not _has_numba():
        raise MissingExtraError("numba", "fast")
    if kind == "numpy" or not _has_numba():
        return NumpyKernels()
    from ostinato.buffer.numba_kernels import NumbaKernels

    return NumbaKernels(threads)


@cache
def _has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def _lists(*columns: Int) -> Any:
    return zip(*(column.tolist() for column in columns), strict=True)
