"""From packed rollouts to padded tensors.

Shape letters: B rollouts, L token positions of the longest one. Everything about predicting tokens has
L - 1 positions: position j belongs to token j + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import MissingExtraError
from ostinato.ragged import gather_positions, row_lengths, row_numbers
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import check_whole
from ostinato.usable import refuse_unusable

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "hf") from error


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole sequences (prompt and completion), padded on the right.

    `tokens` int64 (B, L); `attention_mask` bool (B, L), False on padding. `loss_mask` bool and `behavior_logprobs`
    float32 (B, L-1) are shifted: position j belongs to predicting token j + 1. `rows` int64 (B,): the rollouts, as
    numbered in the `Rollouts` they come from.
    """

    tokens: Tensor
    attention_mask: Tensor
    loss_mask: Tensor
    behavior_logprobs: Tensor
    rows: NDArray[np.int64]


def padded_batch(
    rollouts: Rollouts,
    rows: NDArray[np.int64],
    *,
    pad_token_id: int,
    rollout_ids: NDArray[np.int64] | None = None,
) -> Batch:
    """Pad the given rollouts to the longest of them. A rollout without trained tokens is fine: it weighs nothing.

    Raises `DataError` when a rollout cannot be used, by the rules of `ostinato.usable`, naming it by its row and, where
    `rollout_ids` (n,) of all rollouts are given, by its id; or when `rows` are no row numbers. `ConfigError` for a
    `pad_token_id` that is no token (a tokenizer may have none: any token will do, padding is never looked at).
    """
    pad_token_id = check_whole("pad_token_id", pad_token_id, least=0)
    rows = row_numbers(rows, len(rollouts))
    refuse_unusable(rollouts, rows=rows, rollout_ids=rollout_ids)
    positions, _ = gather_positions(rollouts.offsets, rows)
    lengths = rollouts.lengths[rows]
    real_BL = np.arange(lengths.max(initial=1)) < lengths[:, None]

    def padded(values: NDArray[Any], fill: int, dtype: type[np.generic]) -> NDArray[Any]:
        dense_BL = np.full(real_BL.shape, fill, dtype)
        dense_BL[real_BL] = values[positions]
        return dense_BL

    tokens_BL = padded(rollouts.tokens, pad_token_id, np.int64)
    mask_BL = padded(rollouts.loss_mask, False, np.bool_)
    behavior_BL = padded(rollouts.behavior_logprobs, 0, np.float32)
    return Batch(
        tokens=torch.from_numpy(tokens_BL),
        attention_mask=torch.from_numpy(real_BL),
        loss_mask=torch.from_numpy(mask_BL[:, 1:]),
        behavior_logprobs=torch.from_numpy(behavior_BL[:, 1:]),
        rows=rows,
    )


def microbatch_rows(lengths: NDArray[np.int64], tokens_per_microbatch: int) -> list[NDArray[np.int64]]:
    """Split rollouts of the given lengths into micro-batches: each row once, neighbors in length together.

    Rows times the longest length stays within `tokens_per_microbatch` (padding included) unless a single rollout alone
    exceeds it. The longest come first, so that memory runs out at the start or never; equal lengths keep their order.

    Raises `DataError` unless the lengths are whole numbers of at least 0, `ConfigError` for a bound below 1.
    """
    tokens_per_microbatch = check_whole("tokens_per_microbatch", tokens_per_microbatch, least=1)
    lengths = row_lengths(lengths)
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    parts, start = [], 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(tokens_per_microbatch // longest, 1)
        parts.append(order[start:stop])
        start = stop
    return parts
