"""What rollouts carry besides their row of scalars: tokens, prompts, extra columns.

Tokens, mask and log-probs after the prompt lie in one arena, 9 bytes a token. A prompt is stored once for all rollouts
that share it, 4 bytes a token: its mask is False and its log-probs are 0. A rollout whose prompt is not like that (a
trajectory that begins with tokens of the policy) is stored whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.arena import Arena
from ostinato.buffer.blobs import COLUMN, Blobs
from ostinato.buffer.kernels import Kernels
from ostinato.buffer.workspace import Workspace
from ostinato.ragged import Extra, Ragged, offsets_of
from ostinato.rollouts import TOKEN_COLUMNS, Rollouts, extra_layouts

TOKEN_BYTES = sum(np.dtype(dtype).itemsize for dtype in TOKEN_COLUMNS.values())


def handle_name(extra: str) -> str:
    """The table's column of handles of an extra column."""
    return f"extra.{extra}"


class Payload:
    """Token columns and extra columns of the rows of one buffer, by handles that the table keeps."""

    def __init__(self, layouts: Mapping[str, str], samples: Mapping[str, Extra], kernels: Kernels) -> None:
        self.layouts = dict(layouts)
        self._kernels = kernels
        self.tokens = Arena({name: (dtype, ()) for name, dtype in TOKEN_COLUMNS.items()}, kernels)
        self.prompts = Blobs(TOKEN_COLUMNS["tokens"], (), kernels)
        self.extras: dict[str, Blobs] = {}
        for name, column in samples.items():
            values = _values(column)
            self.extras[name] = Blobs(values.dtype, values.shape[1:], kernels)

    @classmethod
    def for_rollouts(cls, rollouts: Rollouts, kernels: Kernels) -> Payload:
        """An empty one for rollouts with these extra columns."""
        return cls(extra_layouts(rollouts), rollouts.extras, kernels)

    @property
    def handle_names(self) -> tuple[str, ...]:
        """Columns of handles that the table must keep besides its own."""
        return tuple(handle_name(name) for name in self.extras)

    @property
    def live_bytes(self) -> int:
        """Bytes of what is held, shared values once."""
        return (
            self.tokens.live_bytes + self.prompts.live_bytes + sum(blobs.live_bytes for blobs in self.extras.values())
        )

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken."""
        return sum(part.allocated_bytes for part in self._parts())

    def _parts(self) -> list[Arena | Blobs]:
        return [self.tokens, self.prompts, *self.extras.values()]

    def put(self, rollouts: Rollouts, rows: NDArray[np.int64] | None = None) -> dict[str, NDArray[np.int64]]:
        """Copy rollouts in, or those `rows` of them; returns the columns of handles."""
        offsets = rollouts.offsets
        tokens, mask, logprobs = (np.ascontiguousarray(getattr(rollouts, name)) for name in TOKEN_COLUMNS)
        kept = rollouts.prompt_length.astype(np.int64)
        whole = self._kernels.dirty_prompts(mask, logprobs, offsets, rollouts.prompt_length)
        if whole is not None:
            kept[whole] = 0
        starts, ends = offsets[:-1], offsets[1:]
        if rows is not None:
            starts, ends, kept = starts[rows], ends[rows], kept[rows]
        after = starts + kept
        columns = dict(zip(TOKEN_COLUMNS, (tokens, mask, logprobs), strict=True))
        handles = {"payload": self.tokens.put(columns, after, ends - after)}
        handles["prompt"] = self.prompts.put(tokens, starts, kept)
        for name, blobs in self.extras.items():
            handles[handle_name(name)] = self._put_extra(blobs, rollouts.extras[name], rows)
        return handles

    def _put_extra(self, blobs: Blobs, column: Extra, rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
        values = _values(column)
        if values.dtype.itemsize > blobs.dtype.itemsize:  # texts, of any width by their layout
            blobs.widen(values.dtype)
        values = np.ascontiguousarray(values.astype(blobs.dtype, copy=False))
        bounds = column.offsets if isinstance(column, Ragged) else np.arange(len(column) + 1)
        starts, lengths = bounds[:-1], np.diff(bounds)
        if rows is not None:
            starts, lengths = starts[rows], lengths[rows]
        return blobs.put(values, starts, lengths)

    def release(self, handles: Mapping[str, NDArray[np.int64]]) -> None:
        """Let go of rows with these handles; a negative handle is of a row that was never put."""
        self.tokens.release(_held(handles["payload"]))
        self.prompts.release(_held(handles["prompt"]))
        for name, blobs in self.extras.items():
            blobs.release(_held(handles[handle_name(name)]))

    def packed(
        self, handles: Mapping[str, NDArray[Any]], lengths: NDArray[Any], out: Workspace
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Extra]]:
        """Token columns, with `offsets`, and extra columns of rows, one after the other."""
        offsets = offsets_of(lengths)
        total = int(offsets[-1])
        columns: dict[str, NDArray[Any]] = {
            name: out.array(name, (total,), dtype) for name, dtype in TOKEN_COLUMNS.items()
        }
        self.write(handles, columns, offsets[:-1])
        columns["offsets"] = offsets
        return columns, {name: self.extra(name, handles, out) for name in self.extras}

    def write(
        self, handles: Mapping[str, NDArray[Any]], columns: dict[str, NDArray[Any]], starts: NDArray[np.int64]
    ) -> None:
        """Copy the token columns of rows to flat arrays, row i to `starts[i]`, ascending."""
        prompts = self.prompts.arena
        self._kernels.get_tokens(columns, starts, self.tokens, handles["payload"], prompts, handles["prompt"])

    def extra(self, name: str, handles: Mapping[str, NDArray[Any]], out: Workspace) -> Extra:
        """An extra column of rows."""
        blobs, own = self.extras[name], handles[handle_name(name)]
        lengths = blobs.arena.lengths(own)
        offsets = offsets_of(lengths)
        values = out.array(handle_name(name), (int(offsets[-1]), *blobs.shape), blobs.dtype)
        blobs.arena.copy_out(COLUMN, own, values, offsets[:-1])
        return Ragged(values, offsets) if self.layouts[name].startswith("ragged") else values


def incoming_bytes(rollouts: Rollouts) -> NDArray[np.int64]:
    """Bytes each rollout needs when it shares nothing, int64 (n,)."""
    total = TOKEN_BYTES * rollouts.lengths
    for column in rollouts.extras.values():
        values = _values(column)
        item = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
        total = total + item * (np.diff(column.offsets) if isinstance(column, Ragged) else 1)
    return total


def _values(column: Extra) -> NDArray[Any]:
    return column.values if isinstance(column, Ragged) else column


def _held(handles: NDArray[np.int64]) -> NDArray[np.int64]:
    return handles if handles.min(initial=0) >= 0 else handles[handles >= 0]
