"""`Kernels` without a compiler: one slice a span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import getitem
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ostinato.buffer.kernels import LAST_STEP, Blocks, Columns, Departed, Drawn, Spans, Stored, TableBlocks
from ostinato.buffer.repeats import occurrence
from ostinato.buffer.tally import FINITE_ROWS, MASKED, PLAIN, ROWS, WHOLE
from ostinato.ragged import gather_positions
from ostinato.rollouts import Rollouts
from ostinato.staleness import residence, staleness

Int = NDArray[np.int64]


class NumpyKernels:
    """One slice a span."""

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

    def put(self, of: Spans, column: str, handles: Int, array: NDArray[Any], starts: Int) -> None:
        """See `Kernels.put`."""
        targets: list[Any] = of.blocks[column].arrays
        for b, i, a, n in _lists(starts, *of.spans[:, handles]):
            if n:
                targets[i][a : a + n] = array[b : b + n]

    def get(self, array: NDArray[Any], starts: Int, of: Spans, column: str, handles: Int) -> None:
        """See `Kernels.get`."""
        (parts,) = _views(of, handles, column)
        for a, part in zip(starts.tolist(), parts, strict=True):
            if len(part):
                array[a : a + len(part)] = part

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
        slabs, _, lengths = of.spans[:, handles]
        if handles.min() < 0 or not (slabs == slabs[0]).all():
            return -1, 0
        of.spans[0, handles] = -1
        return int(slabs[0]), int(lengths.sum())

    def get_tokens(self, out: Columns, starts: Int, of: Stored, row: Mapping[str, Int], *, packed: bool) -> None:
        """See `Kernels.get_tokens`."""
        prompts = of.prompt_spans.spans[2, row["prompt"]]
        middle, ends = starts + prompts, starts + prompts + of.tokens.spans[2, row["payload"]]
        (before,) = _views(of.prompt_spans, row["prompt"], "values")
        tokens, logprobs = _views(of.tokens, row["payload"], "tokens", "behavior_logprobs")
        mask = out["loss_mask"]
        if packed:
            zeros = _slices(np.zeros(prompts.max(initial=0), np.float32), prompts)
            _concatenate(before, tokens, out["tokens"])
            _concatenate(zeros, logprobs, out["behavior_logprobs"])
            mask.fill(True)
            _clear(mask, starts, prompts)
        else:
            _assign(out["tokens"], starts, middle, before)
            _assign(out["tokens"], middle, ends, tokens)
            _assign(out["behavior_logprobs"], middle, ends, logprobs)
            for a, b in _lists(middle, ends):
                mask[a:b] = True
        own = np.flatnonzero(row["mask"] >= 0)
        if len(own):
            self.get(mask, middle[own], of.masks, "loss_mask", row["mask"][own])

    def pad(self, out: Columns, starts: Int, lengths: Int, token: int) -> None:
        """See `Kernels.pad`; to fill everything takes numpy less time than what stands beside each row."""
        for name, array in out.items():
            array.fill(token if name == "tokens" else 0)

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

    def draw(self, table: TableBlocks, rows: Int, train_step: int, correct_above: float) -> Drawn | None:
        """See `Kernels.draw`."""
        if not table["alive"][rows].all():
            return None
        row = table.named({name: block.take(rows, axis=1) for name, block in table.blocks.items()})
        repeat, last = occurrence(rows), row["last_use_step"]
        since = np.where(repeat > 0, 0, np.where(last < 0, -1, train_step - last))
        np.add.at(table["uses"], rows, 1)
        table["last_use_step"][rows] = train_step
        new = int(np.count_nonzero(since == -1))
        age = staleness(train_step, row["policy_version_min"])
        sums = (
            age.sum(),
            since.sum() + new,
            new,
            np.count_nonzero(repeat),
            np.count_nonzero(row["reward"] > correct_above),
            np.count_nonzero(row["group_reward_std"] > 0),
        )
        by_source = np.bincount(row["source_code"], minlength=len(table.sources))
        stay = residence(train_step, row["insert_step"])
        return Drawn(row, row["uses"] + repeat, since, age, stay, np.array(sums, np.float64), by_source)

    def inspect(self, rollouts: Rollouts, train_step: int = LAST_STEP) -> NDArray[np.int8] | None:
        """See `Kernels.inspect`."""
        mask, logprobs, offsets = rollouts.loss_mask, rollouts.behavior_logprobs, rollouts.offsets
        inside = np.minimum(rollouts.completion_lengths, rollouts.prompt_length).min(initial=0) >= 0
        if not inside or offsets[0] != 0 or offsets[-1] != len(mask):  # whoever made the rollouts changed them
            raise FloatingPointError
        # One sum is a fraction of the price of looking at every number, and not finite when one of them is not.
        fine = np.isfinite(logprobs.sum(dtype=np.float64)) and rollouts.policy_version_max.max(initial=0) <= train_step
        fine = fine and (rollouts.policy_version_min <= rollouts.policy_version_max).all()
        if not fine or not all(np.isfinite(getattr(rollouts, name)).all() for name in FINITE_ROWS):
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
        """See `Kernels.all_equal`; to look would cost numpy as much as it could save."""
        return len(starts) == 1


def _views(of: Spans, handles: Int, *columns: str) -> Iterator[list[NDArray[Any]]]:
    """The spans of these handles, in place, of each column."""
    slabs, places, lengths = of.spans[:, handles]
    numbers, cuts = slabs.tolist(), list(map(slice, places.tolist(), (places + lengths).tolist()))
    for column in columns:
        arrays: list[Any] = of.blocks[column].arrays
        if not lengths.all():
            # A span of no items may outlive its slab, whose number may by now be that of nothing.
            nothing = np.empty(0, next((array.dtype for array in arrays if array is not None), np.int32))
            arrays = [nothing if array is None else array for array in [*arrays, None]]
        yield list(map(getitem, map(arrays.__getitem__, numbers), cuts))


def _slices(array: NDArray[Any], lengths: Int) -> list[NDArray[Any]]:
    """The first items of an array, as many as each length says."""
    counts = lengths.tolist()
    known = {count: array[:count] for count in set(counts)}
    return [known[count] for count in counts]


def _concatenate(before: list[NDArray[Any]], behind: list[NDArray[Any]], out: NDArray[Any]) -> None:
    """One of `before`, one of `behind`, and so on."""
    parts = before + behind
    parts[0::2], parts[1::2] = before, behind
    if parts:
        np.concatenate(parts, out=out)


def _assign(out: NDArray[Any], starts: Int, ends: Int, parts: list[NDArray[Any]]) -> None:
    """Copy each part to where it begins and ends."""
    for a, b, part in zip(starts.tolist(), ends.tolist(), parts, strict=True):
        out[a:b] = part


def _clear(mask: NDArray[Any], starts: Int, lengths: Int) -> None:
    """Set spans to False: all of one length at once, where there are few lengths."""
    different = np.unique(lengths[lengths > 0]).tolist()
    if 8 * len(different) > len(lengths):
        for a, b in _lists(starts, starts + lengths):
            mask[a:b] = False
        return
    for length in different:
        sliding_window_view(mask, length, writeable=True)[starts[lengths == length]] = False


def _lists(*columns: Int) -> Any:
    return zip(*(column.tolist() for column in columns), strict=True)
