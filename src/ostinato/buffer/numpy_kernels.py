"""`Kernels` without a compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.kernels import LAST_STEP, Blocks, Columns, Departed, Drawn, Spans, Stored, TableBlocks, address
from ostinato.buffer.repeats import occurrence
from ostinato.buffer.tally import FINITE_ROWS, MASKED, PLAIN, ROWS, WHOLE
from ostinato.buffer.windows import Windows
from ostinato.ragged import gather_positions
from ostinato.rollouts import Rollouts
from ostinato.staleness import residence, staleness

Int = NDArray[np.int64]


class NumpyKernels:
    """One indexing for all spans of about one size."""

    name, exchanges = "numpy", False

    def copy(
        self, to: Blocks, to_block: Int, to_start: Int, of: Blocks, of_block: Int, of_start: Int, lengths: Int
    ) -> None:
        """See `Kernels.copy`."""
        item = to.item_bytes
        targets, sources = to.addresses[to_block] + item * to_start, of.addresses[of_block] + item * of_start
        Windows(item * lengths).copy(targets, sources, 1)

    def put(self, of: Spans, column: str, handles: Int, array: NDArray[Any], starts: Int) -> None:
        """See `Kernels.put`."""
        item, located = of.blocks[column].item_bytes, _located(of, handles)
        inside, outside = _addresses(of, column, located), address(array) + item * starts
        Windows(item * located[2]).copy(inside, outside, 1)

    def get(self, array: NDArray[Any], starts: Int, of: Spans, column: str, handles: Int) -> None:
        """See `Kernels.get`."""
        item, located = of.blocks[column].item_bytes, _located(of, handles)
        inside, outside = _addresses(of, column, located), address(array) + item * starts
        Windows(item * located[2]).copy(outside, inside, 1)

    def enter(
        self, of: Spans, handles: Int, sources: Columns, starts: Int, lengths: Int, slab: int, place: int, room: int
    ) -> int:
        """See `Kernels.enter`."""
        items = int(lengths.sum())
        if items > room:
            return -1
        of.spans[0, handles] = slab
        of.spans[1, handles] = place + np.cumsum(lengths) - lengths
        of.spans[2, handles] = lengths
        for name in of.blocks:
            self.put(of, name, handles, sources[name], starts)
        return items

    def leave(self, of: Spans, handles: Int) -> tuple[int, int]:
        """See `Kernels.leave`."""
        slabs, _, lengths = of.spans[:3, handles]
        if handles.min() < 0 or not (slabs == slabs[0]).all():
            return -1, 0
        of.spans[0, handles] = -1
        return int(slabs[0]), int(lengths.sum())

    def get_packed(self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int]) -> None:
        """See `Kernels.get_packed`."""
        out["loss_mask"].fill(True)
        prompts = self._get_prompts(out["tokens"], starts, of, row)
        prompts.fill(address(out["behavior_logprobs"]) + 4 * starts, 4, 0)
        prompts.fill(address(out["loss_mask"]) + starts, 1, 0)
        self._get_rest(out, starts + prompts.lengths, of, row)

    def get_padded(
        self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int], lengths: Int, token: int
    ) -> None:
        """See `Kernels.get_padded`; to fill everything takes numpy less time than what stands beside the rows."""
        for name, array in out.items():
            array.fill(token if name == "tokens" else 0)
        starts = starts + out["tokens"].shape[1] * np.arange(len(starts))
        behind = starts + self._get_prompts(out["tokens"], starts, of, row).lengths
        self._get_rest(out, behind, of, row, mask=True)

    def _get_prompts(self, tokens: NDArray[np.int32], starts: Int, of: Stored, row: Mapping[str, Int]) -> Windows:
        located = _located(of.prompt_spans, row["prompt"])
        windows = Windows(located[2], 4)
        windows.copy(address(tokens) + 4 * starts, _addresses(of.prompt_spans, "values", located), 4)
        return windows

    def _get_rest(self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int], *, mask: bool = False) -> None:
        """What follows the prompts; `mask`: it is not set yet."""
        located = _located(of.tokens, row["payload"])
        windows = Windows(located[2], 4)
        for name in ("tokens", "behavior_logprobs"):
            windows.copy(address(out[name]) + 4 * starts, _addresses(of.tokens, name, located), 4)
        if mask:
            windows.fill(address(out["loss_mask"]) + starts, 1, 1)
        own = np.flatnonzero(row["mask"] >= 0)
        if len(own):
            self.get(out["loss_mask"], starts[own], of.masks, "loss_mask", row["mask"][own])

    def append(
        self, table: TableBlocks, start: int, rollouts: Rollouts, ids: Int, settled: Mapping[str, float]
    ) -> None:
        """See `Kernels.append`."""
        columns: dict[str, Any] = dict(settled) | {"uses": 0, "last_use_step": -1, "alive": True}
        columns |= {name: getattr(rollouts, name) for name in ROWS}
        columns |= {"rollout_id": ids, "length": rollouts.lengths} | dict.fromkeys(table.handle_names, -1)
        stop = start + len(rollouts)
        for name, values in columns.items():
            table[name][start:stop] = values

    def kill(self, table: TableBlocks, rows: Int, first: int) -> tuple[Departed, int]:
        """See `Kernels.kill`."""
        handles = np.array([table[name][rows] for name in table.handle_names], np.int64)
        departed = Departed(table["uses"][rows], table["length"][rows], handles)
        alive = table["alive"]
        alive[rows] = False
        ahead = alive[first:]
        step = int(ahead.argmax()) if len(ahead) else 0
        return departed, first + step if len(ahead) and ahead[step] else len(alive)

    def exchange(self, *about: Any) -> None:
        """See `Kernels.exchange`; step by step takes numpy no longer."""

    def draw(self, table: TableBlocks, rows: Int, train_step: int, correct_above: float) -> Drawn | None:
        """See `Kernels.draw`."""
        if not table["alive"][rows].all():
            return None
        row, held = table.gather(rows), table["uses"]
        np.add.at(held, rows, 1)
        table["last_use_step"][rows] = train_step
        uses, last = row["uses"].copy(), row["last_use_step"]
        since = train_step - last
        since[last < 0] = -1
        several = np.flatnonzero(held[rows] - uses > 1)
        repeat = occurrence(rows[several])
        uses[several] += repeat
        again = several[repeat > 0]
        since[again] = 0
        new = int(np.count_nonzero(since == -1))
        age = staleness(train_step, row["policy_version_min"])
        sums = (
            age.sum(),
            since.sum() + new,
            new,
            len(again),
            np.count_nonzero(row["reward"] > correct_above),
            np.count_nonzero(row["group_reward_std"] > 0),
        )
        by_source = np.bincount(row["source_code"], minlength=len(table.sources))
        stay = residence(train_step, row["insert_step"])
        return Drawn(row, uses, since, age, stay, np.array(sums, np.float64), by_source)

    def inspect(self, rollouts: Rollouts, train_step: int = LAST_STEP) -> NDArray[np.int8] | None:
        """See `Kernels.inspect`."""
        mask, logprobs, offsets = rollouts.loss_mask, rollouts.behavior_logprobs, rollouts.offsets
        oldest, newest, behind = rollouts.policy_version_min, rollouts.policy_version_max, rollouts.completion_lengths
        wrong = ((behind | rollouts.prompt_length) < 0) | (newest > train_step) | (oldest > newest)
        if np.count_nonzero(wrong) or offsets[0] != 0 or offsets[-1] != len(mask):
            raise FloatingPointError
        # A sum is a fraction of the price of looking at every number, and not finite when one of them is not.
        numbers = [getattr(rollouts, name) for name in FINITE_ROWS]
        with np.errstate(over="ignore", invalid="ignore"):
            fine = np.isfinite(logprobs.sum(dtype=np.float64)), np.isfinite(sum(numbers).sum())
        if not fine[0] or not (fine[1] or all(np.isfinite(column).all() for column in numbers)):
            raise FloatingPointError
        n = len(rollouts)
        bounds = np.empty(2 * n + 1, np.int64)
        bounds[0::2], bounds[1::2] = offsets, offsets[:-1] + rollouts.prompt_length
        prompts, _ = gather_positions(bounds, 2 * np.arange(n))
        dirty = mask[prompts] | (logprobs[prompts] != 0) | np.signbit(logprobs[prompts])
        if not dirty.any() and np.count_nonzero(mask) == len(mask) - len(prompts):
            return None
        kinds = np.full(n, PLAIN, np.int8)
        told = np.concatenate([[0], np.cumsum(mask)])
        kinds[told[offsets[1:]] - told[bounds[1::2]] < offsets[1:] - bounds[1::2]] = MASKED
        kinds[np.searchsorted(offsets, prompts[dirty], "right") - 1] = WHOLE
        return kinds

    def all_equal(self, array: NDArray[Any], starts: Int, lengths: Int) -> bool:
        """See `Kernels.all_equal`."""
        counts, count = lengths.tolist(), int(lengths[0])
        if counts.count(count) < len(counts):
            return False
        contents = (array[start : start + count].tobytes() for start in starts.tolist())
        first = next(contents)
        return all(content == first for content in contents)


def _located(of: Spans, handles: Int) -> Int:
    """Block, start and length of each span, a row of what was asked each."""
    located: Int = of.spans.T.take(handles, axis=0).T
    return located


def _addresses(of: Spans, column: str, located: Int) -> Int:
    """Where spans begin."""
    blocks = of.blocks[column]
    addresses: Int = blocks.addresses[located[0]] + blocks.item_bytes * located[1]
    return addresses
