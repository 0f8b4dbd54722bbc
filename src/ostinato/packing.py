"""Rollouts one after the other in one row without padding, and back to one row each, where every loss works.

    batch = packed_batch(rollouts, rows)
    logits = model(input_ids=batch.tokens, position_ids=batch.position_ids, use_cache=False).logits[:, :-1]
    logprobs_1S, _ = selected_logprobs(logits, batch.tokens[:, 1:], temperature)
    logprobs_BL, mask_BL = unpacked(logprobs_1S, batch), unpacked(batch.loss_mask, batch)

A model must not look from one rollout into the one before it. Models of transformers (eager and sdpa attention) see
that from the positions, given without an attention mask and without a cache; kernels for packed sequences take
`cu_seqlens` and `max_seqlen`. Layers that carry a state along the row (convolutions, recurrence) may not.

Shape letters: B rollouts, S tokens of all of them, L of the longest. Everything about predicting tokens has one
position less: position j belongs to token j + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError, MissingExtraError
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
class PackedBatch:
    """Whole sequences (prompt and completion) in one row.

    `tokens`, `position_ids` int64 (1, S), the positions from 0 in each rollout. `loss_mask` bool and
    `behavior_logprobs` float32 (1, S-1) are shifted: position j belongs to predicting token j + 1; where that is the
    first of its rollout, the mask is False. `cu_seqlens` int32 (B+1,): where each rollout begins, and where the last
    ends; `max_seqlen`: tokens of the longest, at least 1. `rows` int64 (B,): the rollouts, as numbered in the
    `Rollouts` they come from.
    """

    tokens: Tensor
    position_ids: Tensor
    loss_mask: Tensor
    behavior_logprobs: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    rows: NDArray[np.int64]


def packed_batch(
    rollouts: Rollouts, rows: NDArray[np.int64], *, rollout_ids: NDArray[np.int64] | None = None
) -> PackedBatch:
    """The given rollouts in one row. A rollout without trained tokens is fine: it weighs nothing.

    Raises `DataError` as `ostinato.batching.padded_batch` does.
    """
    rows = row_numbers(rows, len(rollouts))
    refuse_unusable(rollouts, rows=rows, rollout_ids=rollout_ids)
    positions, offsets = gather_positions(rollouts.offsets, rows)
    position_ids = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    # A rollout's first token is never trained on, so the shift does not reach across rollouts.
    return PackedBatch(
        tokens=torch.from_numpy(rollouts.tokens[positions].astype(np.int64))[None],
        position_ids=torch.from_numpy(position_ids)[None],
        loss_mask=torch.from_numpy(rollouts.loss_mask[positions[1:]])[None],
        behavior_logprobs=torch.from_numpy(rollouts.behavior_logprobs[positions[1:]])[None],
        cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
        max_seqlen=int(rollouts.lengths[rows].max(initial=1)),
        rows=rows,
    )


def unpacked(values_1S: Tensor, batch: PackedBatch) -> Tensor:
    """Values of positions, (1, S-1), as one row a rollout, padded on the right with 0 (False): (B, L-1).

    The layout of `ostinato.batching.Batch`. What stands at the end of a rollout, where the next one's first token would
    be predicted, reaches neither value nor gradient. Differentiable. Raises `DataError` for another shape or type.
    """
    if not isinstance(values_1S, Tensor):
        raise DataError(f"values: expected a tensor, got {type(values_1S).__name__}")
    expected = (1, max(batch.tokens.shape[1] - 1, 0))
    if values_1S.shape != expected:
        raise DataError(
            f"values have shape {tuple(values_1S.shape)}, expected {expected}: the tokens without the first"
        )
    device = values_1S.device
    predicted_B1 = (batch.cu_seqlens.to(device).diff() - 1)[:, None]
    real_BL = torch.arange(batch.max_seqlen - 1, device=device) < predicted_B1
    within_S = batch.position_ids[0, 1:].to(device) > 0
    return values_1S.new_zeros(real_BL.shape).masked_scatter(real_BL, values_1S[0][within_S])


def packed_rows(lengths: NDArray[np.int64], tokens_per_row: int) -> list[NDArray[np.int64]]:
    """Split rollouts of the given lengths into rows of at most `tokens_per_row` tokens: each once, in few rows.

    The longest first, each into the first row with room for it; one that alone exceeds the bound gets a row of its own.
    Raises as `ostinato.batching.microbatch_rows` does.
    Source: Johnson 1973 (first-fit decreasing: at most 11/9 of the fewest rows, plus one).
    """
    tokens_per_row = check_whole("tokens_per_microbatch", tokens_per_row, least=1)
    lengths = row_lengths(lengths)
    rows: list[list[int]] = []
    room: list[int] = []
    for place in np.argsort(-lengths, kind="stable"):
        length = int(lengths[place])
        fitting = next((row for row, free in enumerate(room) if free >= length), None)
        if fitting is None:
            fitting = len(rows)
            rows.append([])
            room.append(tokens_per_row)
        rows[fitting].append(int(place))
        room[fitting] -= length
    return [np.array(row, np.int64) for row in rows]
