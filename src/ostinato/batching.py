"""From packed rollouts to padded tensors, and from logits to the log-probs that a loss needs.

Shape letters: B rollouts, L token positions of the longest one, V vocabulary. Everything about predicting tokens has
L - 1 positions: position j belongs to token j + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError, MissingExtraError
from ostinato.ragged import gather_positions, row_numbers
from ostinato.rollouts import Rollouts

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "hf") from error

# A log-prob may end a hair above 0 in an engine that normalizes in float32.
LOGPROB_ROUNDING = 1e-4


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


def padded_batch(rollouts: Rollouts, rows: NDArray[np.int64], *, pad_token_id: int) -> Batch:
    """Pad the given rollouts to the longest of them. A rollout without trained tokens is fine: it weighs nothing.

    Raises `DataError` when a trained token cannot be used: its behavior log-prob is NaN, infinite or positive, or it is
    the first of its sequence, which nothing predicts; or when `rows` are no row numbers.
    """
    rows = row_numbers(rows, len(rollouts))
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
    _check_trained_tokens(mask_BL, behavior_BL, rows, rollouts.group_id[rows])
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
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    parts, start = [], 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(tokens_per_microbatch // longest, 1)
        parts.append(order[start:stop])
        start = stop
    return parts


def selected_logprobs(logits: Tensor, tokens: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the tokens that followed, and the entropy of each prediction, in nats: two float32 (B, L-1).

        logprobs = log softmax(logits / temperature)[token]      entropy = -sum_v p_v log p_v   (detached)

    `logits` (B, L-1, V) of any float type; `tokens` int64 (B, L-1), the targets: `batch.tokens[:, 1:]`;
    `temperature` > 0, one number or one a rollout (B,). Top-p and top-k are not applied: log-probs under a truncated
    distribution are larger than these by -log(probability mass that was kept).

    Normalizing keeps one array of the size of the logits for the backward pass and frees the logits themselves;
    subtracting a log-sum-exp would keep the logits and need two more arrays on the way back.

    Raises `DataError` for other shapes, `ConfigError` for one temperature that is not above 0 (the values of a tensor
    are not looked at: that would wait for the device).
    """
    if tokens.shape != logits.shape[:-1]:
        raise DataError(f"tokens have shape {tuple(tokens.shape)}, expected {tuple(logits.shape[:-1])} of the logits")
    if isinstance(temperature, Tensor):
        if temperature.shape != logits.shape[:1]:
            raise DataError(f"temperature has shape {tuple(temperature.shape)}, expected {tuple(logits.shape[:1])}")
        logits = logits.float() / temperature[:, None, None]
    elif not temperature > 0:
        raise ConfigError(f"temperature must be above 0, got {temperature}: a greedy choice has no log-probs")
    elif temperature != 1:
        logits = logits.float() / temperature
    log_policy = logits.log_softmax(-1, dtype=torch.float32)
    with torch.no_grad():
        entropy = -log_policy.exp().mul_(log_policy).sum(-1)
    return log_policy.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), entropy


def _check_trained_tokens(
    mask_BL: NDArray[np.bool_],
    behavior_BL: NDArray[np.float32],
    rows_B: NDArray[np.int64],
    group_id_B: NDArray[np.int64],
) -> None:
    unusable_BL = ~np.isfinite(behavior_BL) | (behavior_BL > LOGPROB_ROUNDING)
    unusable_BL[:, 0] = True
    bad = np.argwhere(mask_BL & unusable_BL)
    if not len(bad):
        return
    row, token = bad[0]
    where = f"token {token} of rollout {rows_B[row]} (group {group_id_B[row]})"
    if token == 0:
        raise DataError(f"{where} is trained on, but nothing stands before it to predict it from")
    raise DataError(f"behavior log-prob {behavior_BL[row, token]} at {where}: expected a finite number, at most 0")
