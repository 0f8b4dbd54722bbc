"""Batches of equal width: what trainers that pad expect, written straight from the buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.payload import Payload
from ostinato.buffer.workspace import Workspace
from ostinato.errors import DataError
from ostinato.ragged import Extra
from ostinato.setting_checks import check_whole

Int = NDArray[np.int64]

BOUNDS = np.iinfo(np.int32)
"""Of `pad_token`, which fills int32, and above of widths, whose batches must fit in memory."""


@dataclass(frozen=True, slots=True)
class RightPadded:
    """Prompt and completion side by side from column 0, padding behind.

    `pad_token` fills `tokens`; the width is that of the longest rollout, rounded up to `multiple_of`, or `width`.
    Raises `ConfigError` for a width or multiple below 1 or above 2^31 - 1, and a `pad_token` that is no int32.
    """

    pad_token: int = 0
    multiple_of: int = 1
    width: int | None = None

    def __post_init__(self) -> None:
        _check_settings(self.pad_token, self.multiple_of)
        if self.width is not None:
            check_whole("width", self.width, least=1, most=BOUNDS.max)

    def columns(self, prompt: Int, length: Int) -> tuple[int, Int]:
        """Width of the batch, and where each row begins in it. Raises `DataError` for one longer than a given width."""
        width = _rounded(length, self.multiple_of) if self.width is None else self.width
        if self.width is not None and _longest(length) > width:
            raise DataError(f"a rollout of {length.max()} tokens does not fit in a width of {width}")
        return width, np.zeros(len(length), np.int64)


@dataclass(frozen=True, slots=True)
class PromptsLeft:
    """Prompts end, and completions begin, in one and the same column: left-padded prompts, right-padded completions.

    That is the layout of TRL and verl; `PaddedDraw.prompt_width` is that column. Widths as in `RightPadded`, for each
    of the two parts: `multiple_of` rounds both up.
    """

    pad_token: int = 0
    multiple_of: int = 1

    def __post_init__(self) -> None:
        _check_settings(self.pad_token, self.multiple_of)

    def columns(self, prompt: Int, length: Int) -> tuple[int, Int]:
        """Width of the batch, and where each row begins in it."""
        left, right = _rounded(prompt, self.multiple_of), _rounded(length - prompt, self.multiple_of)
        return left + right, left - prompt


Layout = RightPadded | PromptsLeft


@dataclass(frozen=True, slots=True)
class PaddedDraw:
    """A batch of B rollouts as arrays of one width, and what `Draw` says about them.

    `tokens` int32, `loss_mask` bool and `behavior_logprobs` float32, each (B, width); `starts` and `lengths`, int64
    (B,): rollout i stands in columns `starts[i]` to `starts[i] + lengths[i] - 1`. `prompt_width`: with `PromptsLeft`
    the column where completions begin, else 0. `columns`: the row columns of `Rollouts`, (B,), by name. `extras`: extra
    columns as in `Rollouts`. The rest as in `Draw`.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    behavior_logprobs: NDArray[np.float32]
    starts: Int
    lengths: Int
    prompt_width: int
    columns: Mapping[str, NDArray[Any]]
    extras: Mapping[str, Extra]
    rollout_ids: Int
    importance_weights: NDArray[np.float64]
    staleness: Int
    residence: Int
    uses: Int
    steps_since_last_use: Int

    def __len__(self) -> int:
        return len(self.rollout_ids)

    @property
    def attention_mask(self) -> NDArray[np.bool_]:
        """Where there is a token, (B, width)."""
        column = np.arange(self.tokens.shape[1])
        starts = self.starts[:, None]
        inside: NDArray[np.bool_] = column >= starts
        inside &= column < starts + self.lengths[:, None]
        return inside


def padded(
    payload: Payload, row: Mapping[str, NDArray[Any]], layout: Layout, out: Workspace
) -> dict[str, NDArray[Any] | int]:
    """The arrays (B, width) of gathered columns. Raises `DataError` for a rollout longer than a given width."""
    lengths, prompt = row["length"].astype(np.int64), row["prompt_length"].astype(np.int64)
    width, starts = layout.columns(prompt, lengths)
    n = len(lengths)
    arrays = payload.padded(row, lengths, starts, (n, width), layout.pad_token, out)
    begin = int((starts + prompt).max(initial=0)) if isinstance(layout, PromptsLeft) else 0
    return {**arrays, "starts": starts, "lengths": lengths, "prompt_width": begin}


def _check_settings(pad_token: object, multiple_of: object) -> None:
    check_whole("pad_token", pad_token, least=BOUNDS.min, most=BOUNDS.max)
    check_whole("multiple_of", multiple_of, least=1, most=BOUNDS.max)


def _rounded(lengths: Int, multiple: int) -> int:
    return -(-_longest(lengths) // multiple) * multiple


def _longest(lengths: Int) -> int:
    return int(lengths[lengths.argmax()]) if len(lengths) else 0  # `max` takes four times as long for a few
