"""`Kernels` by the compiled functions, in one or more threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import compiled
from ostinato.buffer.kernels import Blocks, Spans, TableBlocks, address
from ostinato.buffer.tally import SUMS

Int = NDArray[np.int64]

COUNTED = ("uses", "last_use_step", "policy_version_min", "reward", "group_reward_std", "source_code")
"""Columns of the table that counting a draw reads or writes."""

LEAST_BYTES_A_THREAD = 1 << 19
"""Below this a second thread costs more than it copies."""


class NumbaKernels:
    """One memcpy a span."""

    name = "numba"

    def __init__(self, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads - 1, "ostinato-copy") if threads > 1 else None
        self._threads = threads
        self._places: Int | None = None

    def copy(
        self, to: Blocks, to_block: Int, to_start: Int, of: Blocks, of_block: Int, of_start: Int, lengths: Int
    ) -> None:
        """See `Kernels.copy`."""
        compiled.copy_spans(to.addresses, to_block, to_start, of.addresses, of_block, of_start, lengths, to.item_bytes)

    def put(self, to: Blocks, block: Int, place: Int, array: NDArray[Any], starts: Int, lengths: Int) -> None:
        """See `Kernels.put`."""
        compiled.put(to.addresses, block, place, address(array), starts, lengths, to.item_bytes)

    def get(self, array: NDArray[Any], starts: Int, of: Spans, column: str, handles: Int) -> None:
        """See `Kernels.get`."""
        blocks = of.blocks[column]
        whole = (address(array), starts, blocks.addresses, of.spans, handles, blocks.item_bytes)
        self._shared(compiled.get, whole, starts, array.nbytes)

    def get_tokens(
        self, out: dict[str, NDArray[Any]], starts: Int, of: Spans, handles: Int, prompts: Spans, prompt_handles: Int
    ) -> None:
        """See `Kernels.get_tokens`."""
        names = ("tokens", "loss_mask", "behavior_logprobs")
        whole = (
            *[address(out[name]) for name in names],
            starts,
            handles,
            of.spans,
            *[of.blocks[name].addresses for name in names],
            prompt_handles,
            prompts.spans,
            prompts.blocks["values"].addresses,
        )
        self._shared(compiled.get_tokens, whole, starts, 2 * out["tokens"].nbytes)

    def count_draw(
        self, rows: Int, table: TableBlocks, train_step: int, correct_above: float
    ) -> tuple[Int, NDArray[np.float64], Int]:
        """See `Kernels.count_draw`."""
        before, sums = np.empty((2, len(rows)), np.int64), np.zeros(len(SUMS))
        by_source = np.zeros(len(table.sources), np.int64)
        if self._places is None:
            self._places = np.array([table.place(name) for name in COUNTED], np.int64)
        integers, numbers, counts = (table.blocks[name] for name in ("integers", "numbers", "counts"))
        compiled.count_draw(
            rows, integers, numbers, counts, self._places, train_step, correct_above, before, sums, by_source
        )
        return before, sums, by_source

    def dirty_prompts(self, mask: Any, logprobs: Any, offsets: Int, prompt_length: Any) -> NDArray[np.bool_] | None:
        """See `Kernels.dirty_prompts`."""
        dirty = np.zeros(len(prompt_length), np.bool_)
        return dirty if compiled.dirty_prompts(mask, logprobs, offsets, prompt_length, dirty) else None

    def all_equal(self, values: NDArray[np.uint8], starts: Int, lengths: Int, item: int) -> bool:
        """See `Kernels.all_equal`."""
        return bool(compiled.all_equal(values, starts, lengths, item))

    def _shared(self, kernel: Callable[..., None], arguments: tuple[Any, ...], starts: Int, size: int) -> None:
        """Run a kernel over all spans, in parts of about equal size where there are threads and enough to do."""
        n = len(starts)
        if self._pool is None or size < self._threads * LEAST_BYTES_A_THREAD:
            kernel(*arguments, 0, n)
            return
        # Rows lie in the order of `starts`, so equal steps of the destination are equal shares of the work.
        aims = starts[-1] * np.arange(1, self._threads) // self._threads
        cuts = [0, *np.searchsorted(starts, aims).tolist(), n]
        others = [self._pool.submit(kernel, *arguments, a, b) for a, b in pairwise(cuts[1:])]
        kernel(*arguments, 0, cuts[1])
        for other in others:
            other.result()
