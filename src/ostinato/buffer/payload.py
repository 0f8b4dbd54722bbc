"""What rollouts carry besides their row of scalars: tokens, prompts, extra columns.

What follows the prompt lies in one arena, 8 bytes a token: tokens and log-probs. Its mask is kept beside, 1 byte a
token, only where it is not True throughout. A prompt is stored once for all rollouts that share it, 4 bytes a token:
its mask is False and its log-probs are 0. A rollout whose prompt is not like that (a trajectory that begins with tokens
of the policy) is stored whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.arena import Arena
from ostinato.buffer.blobs import COLUMN, Blobs
from ostinato.buffer.kernels import Apart, Columns, Exchanged, Kernels, TableBlocks, item_bytes
from ostinato.buffer.tally import PLAIN, WHOLE
from ostinato.buffer.texts import HEADER, are_texts, decoded, encoded
from ostinato.buffer.workspace import Workspace
from ostinato.ragged import Extra, Ragged, offsets_of
from ostinato.rollouts import TOKEN_COLUMNS, Rollouts, extra_layouts

TOKEN_BYTES = sum(np.dtype(dtype).itemsize for dtype in TOKEN_COLUMNS.values())


MASK = "loss_mask"

HANDLES = ("payload", "mask", "prompt")
"""The table's columns of handles of the tokens; -1: nothing of the kind is kept."""

Together = Mapping[str, NDArray[np.int64]]

NO_HANDLES = np.empty(0, np.int64)
NO_MASK = np.full(1, -1)
NO_MASK.flags.writeable = False


def handle_name(extra: str) -> str:
    """The table's column of handles of an extra column."""
    return f"extra.{extra}"


class Payload:
    """Token columns and extra columns of the rows of one buffer, by handles that the table keeps."""

    def __init__(self, layouts: Mapping[str, str], samples: Mapping[str, Extra], kernels: Kernels) -> None:
        self.layouts = dict(layouts)
        self._kernels = kernels
        kept = {name: (dtype, ()) for name, dtype in TOKEN_COLUMNS.items()}
        self.masks = Arena({MASK: kept.pop(MASK)}, kernels)
        self.tokens = Arena(kept, kernels)
        self.prompts = Blobs(TOKEN_COLUMNS["tokens"], (), kernels)
        self.extras: dict[str, Blobs] = {}
        self.kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}  # dtype and shape of the items of extras
        for name, column in samples.items():
            values = _values(column)
            self.kinds[name] = dtype, shape = values.dtype, values.shape[1:]
            self.extras[name] = (
                Blobs(np.uint8, (), kernels) if are_texts(dtype, shape) else Blobs(dtype, shape, kernels)
            )

    @classmethod
    def for_rollouts(cls, rollouts: Rollouts, kernels: Kernels) -> Payload:
        """An empty one for rollouts with these extra columns."""
        return cls(extra_layouts(rollouts), rollouts.extras, kernels)

    @property
    def prompt_spans(self) -> Arena:
        """Where the prompts lie."""
        return self.prompts.arena

    @property
    def handle_names(self) -> tuple[str, ...]:
        """Columns of handles that the table must keep."""
        return (*HANDLES, *(handle_name(name) for name in self.extras))

    @property
    def live_bytes(self) -> int:
        """Bytes of what is held, shared values once."""
        return sum(part.live_bytes for part in self._parts())

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken."""
        return sum(part.allocated_bytes for part in self._parts())

    def _parts(self) -> list[Arena | Blobs]:
        return [self.tokens, self.masks, self.prompts, *self.extras.values()]

    @property
    def shared_parts(self) -> dict[str, Blobs]:
        """What rows share, by the table's column of its handles."""
        return {"prompt": self.prompts} | {handle_name(name): blobs for name, blobs in self.extras.items()}

    def put(
        self,
        rollouts: Rollouts,
        kinds: NDArray[np.int8] | None,
        rows: NDArray[np.int64] | None = None,
        together: Together = MappingProxyType({}),
    ) -> dict[str, NDArray[np.int64]]:
        """Copy rollouts in, or those `rows` of them; returns the columns of handles. `kinds`: see `Kernels.inspect`.

        `together`, with all rows: by the column of handles which rows may share a value, those with the same number.
        """
        kept = rollouts.prompt_length.astype(np.int64)
        if kinds is not None:
            kept[kinds == WHOLE] = 0
        starts, ends = rollouts.offsets[:-1], rollouts.offsets[1:]
        if rows is not None:
            starts, ends, kept = starts[rows], ends[rows], kept[rows]
            kinds = None if kinds is None else kinds[rows]
        after = starts + kept
        columns = {name: np.ascontiguousarray(getattr(rollouts, name)) for name in TOKEN_COLUMNS}
        handles = {"payload": self.tokens.put(columns, after, ends - after)}
        handles["prompt"] = self.prompts.put(columns["tokens"], starts, kept, together.get("prompt"))
        handles["mask"] = NO_MASK if kinds is None else np.full(len(after), -1)
        if kinds is not None:
            own = np.flatnonzero(kinds != PLAIN)
            handles["mask"][own] = self.masks.put(columns, after[own], (ends - after)[own])
        for name, blobs in self.extras.items():
            own_column = handle_name(name)
            handles[own_column] = self._put_extra(blobs, rollouts.extras[name], rows, together.get(own_column))
        return handles

    def exchange(
        self,
        table: TableBlocks,
        rollouts: Rollouts,
        ids: NDArray[np.int64],
        settled: Mapping[str, float],
        leaving: int,
        apart: Apart | None,
    ) -> Exchanged | None:
        """See `Kernels.exchange`; `leaving` rows, none or as many as come. What they leave is released here."""
        tokens, prompts, n = self.tokens, self.prompts, len(ids)
        if leaving not in (0, n) or self.masks.live_items or self.extras:
            return None
        handles = NO_HANDLES if leaving else tokens.new_handles(n)
        leader = rollouts.tokens if apart is None else apart.given[0][0]
        gap = (table.first, *tokens.gap, prompts.candidate(leader, int(rollouts.prompt_length[0])))
        done = self._kernels.exchange(table, rollouts, ids, settled, self, prompts.users, handles, gap, apart)
        if done is None:
            tokens.unused(handles)
            return None
        if leaving:
            handles = done.departed[2]
        if done.slabs < 0:
            tokens.release(handles)
        if done.slabs == 1:
            tokens.thin(done.slab, done.gone)
        elif done.slabs > 1:
            for slab, items in sorted(done.departed[4:, : done.slabs].T.tolist()):
                tokens.thin(slab, items)
        if done.unused:
            prompts.forget(done.departed[3, : done.unused])
        if done.slabs >= 0:
            at = done.placed
            tokens.filled(
                done.items, (handles[at:], *_behind_prompts(rollouts, at, apart, tokens.blocks)) if at < n else None
            )
        prompts.shared += done.shared
        return done

    def _put_extra(
        self, blobs: Blobs, column: Extra, rows: NDArray[np.int64] | None, together: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        values = _values(column)
        bounds = column.offsets if isinstance(column, Ragged) else np.arange(len(column) + 1)
        if are_texts(values.dtype, values.shape[1:]):
            values, bounds = encoded(values, bounds)
        values = np.ascontiguousarray(values)
        starts, lengths = bounds[:-1], np.diff(bounds)
        if rows is not None:
            starts, lengths = starts[rows], lengths[rows]
        return blobs.put(values, starts, lengths, together)

    def release(self, handles: NDArray[np.int64]) -> None:
        """Let go of rows with these handles, (handle columns, n); a negative handle is of a row that was never put."""
        payload, masks, prompts, *extras = handles
        self.tokens.release(payload)
        if self.masks.live_items:
            self.masks.release(masks)
        self.prompts.release(prompts)
        for blobs, own in zip(self.extras.values(), extras, strict=True):
            blobs.release(own)

    def packed(
        self, handles: Mapping[str, NDArray[Any]], lengths: NDArray[Any], out: Workspace
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Extra]]:
        """Token columns, with `offsets`, and extra columns of rows, one after the other."""
        offsets = offsets_of(lengths)
        total = (int(offsets[-1]),)
        columns = _token_arrays(out, total)
        self._kernels.get_packed(columns, offsets[:-1], self, handles)
        columns["offsets"] = offsets
        return columns, {name: self.extra(name, handles, out) for name in self.extras}

    def padded(
        self,
        handles: Mapping[str, NDArray[Any]],
        lengths: NDArray[np.int64],
        starts: NDArray[np.int64],
        shape: tuple[int, int],
        pad_token: int,
        out: Workspace,
    ) -> dict[str, NDArray[Any]]:
        """Token columns of rows in arrays of this shape (n, width), row i from column `starts[i]` on."""
        columns = _token_arrays(out, shape)
        self._kernels.get_padded(columns, starts, self, handles, lengths, pad_token)
        return columns

    def extra(self, name: str, handles: Mapping[str, NDArray[Any]], out: Workspace) -> Extra:
        """An extra column of rows."""
        blobs, own = self.extras[name], handles[handle_name(name)]
        lengths = blobs.arena.lengths(own)
        offsets = offsets_of(lengths)
        values = out.array(handle_name(name), (int(offsets[-1]), *blobs.shape), blobs.dtype)
        blobs.arena.copy_out(COLUMN, own, values, offsets[:-1])
        dtype, shape = self.kinds[name]
        if are_texts(dtype, shape):
            values, offsets = decoded(values, offsets, dtype.kind, shape)
        return Ragged(values, offsets) if self.layouts[name].startswith("ragged") else values


def incoming_bytes(rollouts: Rollouts) -> NDArray[np.int64]:
    """Bytes each rollout needs when it shares nothing, int64 (n,)."""
    total = TOKEN_BYTES * rollouts.lengths
    for column in rollouts.extras.values():
        values = _values(column)
        item = item_bytes(values.dtype, values.shape[1:])
        total = total + item * (np.diff(column.offsets) if isinstance(column, Ragged) else 1)
        total = total + (HEADER.itemsize if are_texts(values.dtype, values.shape[1:]) else 0)
    return total


def _values(column: Extra) -> NDArray[Any]:
    return column.values if isinstance(column, Ragged) else column


def _behind_prompts(
    rollouts: Rollouts, first: int, apart: Apart | None, tokens: Iterable[str]
) -> tuple[Columns, NDArray[np.int64], NDArray[np.int64]]:
    """These token columns, and where in them what follows the prompts from rollout `first` on begins: how much."""
    starts = rollouts.offsets[first:-1] + rollouts.prompt_length[first:]
    lengths = rollouts.offsets[first + 1 :] - starts
    if apart is not None:
        return apart.packed(*tokens, first=first), starts - rollouts.offsets[first], lengths
    return {name: np.ascontiguousarray(getattr(rollouts, name)) for name in tokens}, starts, lengths


def _token_arrays(out: Workspace, shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    return {name: out.array(name, shape, dtype) for name, dtype in TOKEN_COLUMNS.items()}
