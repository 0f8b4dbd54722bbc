"""`Kernels` by the compiled functions, in one or more threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import compiled, compiled_exchange, compiled_given, compiled_inspect, compiled_rows
from ostinato.buffer.kernels import (
    LAST_STEP,
    Apart,
    Blocks,
    Columns,
    Departed,
    Drawn,
    Exchanged,
    Spans,
    Stored,
    TableBlocks,
    address,
    item_bytes,
)
from ostinato.buffer.tally import FINITE_ROWS, ROWS, SUMS
from ostinato.rollouts import Rollouts

Int = NDArray[np.int64]

AGES = ("uses", "last_use_step", "policy_version_min", "insert_step")
COUNTED = (*AGES, "reward", "group_reward_std", "source_code", "alive")
"""Columns of the table that a draw reads or writes."""

SETTLED = ("insert_step", "priority", "group_rows", "source_code")
NEW = ("length", "rollout_id", "uses", "last_use_step", *SETTLED, "alive", "payload", "prompt")
KILLED = ("uses", "length", "alive")
"""Columns that an append and a kill read or write."""

_rows_of, _finite_of, _settled = attrgetter(*ROWS), attrgetter(*FINITE_ROWS), itemgetter(*SETTLED)

LEAST_BYTES_A_THREAD = 1 << 19
"""Below this a second thread costs more than it copies."""


class NumbaKernels:
    """One memcpy a span."""

    name, exchanges = "numba", compiled_given.KNOWN is not None
    number_kinds = compiled_given.KIND_OF

    def __init__(self, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads - 1, "ostinato-copy") if threads > 1 else None
        self._threads = threads
        self._places: Int | None = None
        self._appended: Int | None = None
        self._killed: Int | None = None

    def copy(
        self, to: Blocks, to_block: Int, to_start: Int, of: Blocks, of_block: Int, of_start: Int, lengths: Int
    ) -> None:
        """See `Kernels.copy`."""
        compiled.copy_spans(to.addresses, to_block, to_start, of.addresses, of_block, of_start, lengths, to.item_bytes)

    def put(self, of: Spans, column: str, handles: Int, array: NDArray[Any], starts: Int) -> None:
        """See `Kernels.put`."""
        blocks = of.blocks[column]
        compiled.put(blocks.addresses, of.spans, handles, _bytes(array), starts, blocks.item_bytes)

    def get(self, array: NDArray[Any], starts: Int, of: Spans, column: str, handles: Int) -> None:
        """See `Kernels.get`."""
        blocks = of.blocks[column]
        whole = (address(array), starts, blocks.addresses, of.spans, handles, blocks.item_bytes)
        self._shared(compiled.get, whole, starts, array.nbytes)

    def enter(
        self, of: Spans, handles: Int, sources: Columns, starts: Int, lengths: Int, slab: int, place: int, room: int
    ) -> int:
        """See `Kernels.enter`."""
        columns: list[Any] = []
        for name, blocks in of.blocks.items():
            columns += [blocks.addresses, _bytes(sources[name]), blocks.item_bytes]
        if len(columns) == 3:
            columns += [*columns[:2], 0]
        return int(compiled.enter(of.spans, handles, starts, lengths, slab, place, room, *columns))

    def leave(self, of: Spans, handles: Int) -> tuple[int, int]:
        """See `Kernels.leave`."""
        slab, items = compiled.leave(of.spans, handles)
        return slab, items

    def get_packed(self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int]) -> None:
        """See `Kernels.get_packed`."""
        whole = (*_tokens_of(out), starts, *_sources(of, row), 0, 0)
        self._shared(compiled.get_tokens, whole, starts, 2 * whole[0].nbytes)

    def get_padded(
        self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int], lengths: Int, token: int
    ) -> None:
        """See `Kernels.get_padded`."""
        n, width = out["tokens"].shape
        whole = (*_tokens_of(out), starts, *_sources(of, row), width, token)
        self._shared(compiled.get_tokens, whole, range(n), 2 * whole[0].nbytes)

    def append(
        self, table: TableBlocks, start: int, rollouts: Rollouts, ids: Int, settled: Mapping[str, float]
    ) -> None:
        """See `Kernels.append`."""
        new: list[Any] = [*table.blocks.values(), *_rows_of(rollouts), rollouts.offsets, ids, *_settled(settled)]
        compiled_rows.append(start, self._written(table), *new)

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
        """See `Kernels.exchange`."""
        base, prompts = of.tokens.blocks, of.prompt_spans
        if len(handles):
            handles = np.ascontiguousarray(handles)
        departed = np.empty((6, len(ids) - len(handles)), np.int64)
        own: list[Any] = [departed, handles, of.tokens.spans, users, base["tokens"].addresses]
        own += [base["behavior_logprobs"].addresses, prompts.spans, prompts.blocks["values"].addresses]
        arrays = self._written(table), *table.blocks.values(), ids, *own
        about: Any = id(arrays) + tuple.__basicsize__, (table.span, *_settled(settled)), gap
        if apart is not None:
            done = compiled_exchange.exchange_rows(*about, apart.columns, rollouts.offsets, apart.rows)  # type: ignore[call-arg]
        else:
            rows = map(np.ascontiguousarray, (rollouts.tokens, rollouts.loss_mask, rollouts.behavior_logprobs))
            given: Any = (_rows_of(rollouts), rollouts.offsets, *rows)
            done = compiled_exchange.exchange(*about, *given)
        return Exchanged(departed, *done) if done[0] >= 0 else None

    def read(self, to: Apart, alone: bool) -> bool:
        """Read what `to` was given into it; False: something is unusual. `alone`: values, no lists of them."""
        about = to.kinds, to.targets, to.rows, to.record.offsets
        return bool(compiled_given.read(compiled_given.KNOWN, id(to.given), alone, *about))

    def _written(self, table: TableBlocks) -> Int:
        """Where the columns that an append writes stand in their blocks."""
        if self._appended is None:
            self._appended = np.array([table.place(name) for name in (*ROWS, *NEW)], np.int64)
        return self._appended

    def kill(self, table: TableBlocks, rows: Int, first: int) -> tuple[Departed, int]:
        """See `Kernels.kill`."""
        if self._killed is None:
            self._killed = np.array([table.place(name) for name in KILLED], np.int64)
        handles = np.empty((len(table.handle_names), len(rows)), np.int64)
        departed = Departed(np.empty(len(rows), np.int64), np.empty(len(rows), np.int32), handles)
        read: list[Any] = [table.blocks[name] for name in ("integers", "counts", "flags")]
        read += [self._killed, *departed, first, table.span]
        return departed, compiled_rows.kill(rows, *read)

    def draw(self, table: TableBlocks, rows: Int, train_step: int, correct_above: float) -> Drawn | None:
        """See `Kernels.draw`."""
        if self._places is None:
            self._places = np.array([table.place(name) for name in COUNTED], np.int64)
        n = len(rows)
        drawn = {name: np.empty((len(block), n), block.dtype) for name, block in table.blocks.items()}
        about, sums = np.empty((4, n), np.int64), np.zeros(len(SUMS))
        by_source = np.zeros(len(table.sources), np.int64)
        blocks: list[Any] = [*table.blocks.values(), *drawn.values()]
        counted: list[Any] = [self._places, train_step, correct_above, about, sums, by_source]
        if not compiled_rows.draw(rows, *blocks, *counted):
            return None
        return Drawn(table.named(drawn), about[0], about[1], about[2], about[3], sums, by_source)

    def inspect(self, rollouts: Rollouts, train_step: int = LAST_STEP) -> NDArray[np.int8] | None:
        """See `Kernels.inspect`."""
        kinds = np.empty(len(rollouts), np.int8)
        bits = np.ascontiguousarray(rollouts.behavior_logprobs).view(np.int32)
        versions = rollouts.policy_version_min, rollouts.policy_version_max
        about = (rollouts.offsets, rollouts.prompt_length, *_finite_of(rollouts), *versions, train_step, kinds)
        greatest = compiled_inspect.inspect(np.ascontiguousarray(rollouts.loss_mask), bits, about)
        if greatest < 0:
            raise FloatingPointError
        return kinds if greatest else None

    def all_equal(self, array: NDArray[Any], starts: Int, lengths: Int) -> bool:
        """See `Kernels.all_equal`."""
        item = item_bytes(array.dtype, array.shape[1:])
        return bool(compiled_rows.all_equal(_bytes(array), starts, lengths, item))

    def _shared(self, kernel: Callable[..., None], arguments: tuple[Any, ...], starts: Int | range, size: int) -> None:
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


def _tokens_of(out: Columns) -> tuple[NDArray[Any], ...]:
    """The token columns, flat."""
    return tuple(out[name].reshape(-1) for name in ("tokens", "behavior_logprobs", "loss_mask"))


def _sources(of: Stored, row: Mapping[str, Int]) -> tuple[Any, ...]:
    """Where rollouts lie."""
    tokens, masks, prompts = of.tokens, of.masks, of.prompt_spans
    return (
        row["payload"],
        tokens.spans,
        tokens.blocks["tokens"].addresses,
        tokens.blocks["behavior_logprobs"].addresses,
        row["mask"],
        masks.spans,
        masks.blocks["loss_mask"].addresses,
        row["prompt"],
        prompts.spans,
        prompts.blocks["values"].addresses,
    )


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of a C-contiguous array."""
    return (array if array.ndim == 1 else array.reshape(-1)).view(np.uint8)
