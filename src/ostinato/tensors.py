"""What a buffer delivers as torch tensors, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.buffer import PaddedDraw
from ostinato.errors import MissingExtraError
from ostinato.protocols import Draw
from ostinato.ragged import Ragged
from ostinato.rollouts import TOKEN_COLUMNS

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "hf") from error


def as_tensors(draw: Draw | PaddedDraw) -> dict[str, Tensor]:
    """The columns of a draw by name, as tensors in the memory of its arrays: to change one is to change the other.

    `tokens` int32, `loss_mask` bool, `behavior_logprobs` float32: (L,) of a `Draw`, (B, width) of a `PaddedDraw`.
    `advantage`, `reward`, `importance_weights` float64 and `rollout_ids` int64 (B,). Extra columns of numbers under
    their names; of a ragged one its values, and its bounds under NAME_offsets. Of a `Draw` also `cu_seqlens` int32
    (B+1,), where each rollout begins, as attention kernels for packed sequences want it; of a `PaddedDraw` `starts` and
    `lengths` int64 (B,) and `attention_mask` bool (B, width). Those two are made for the call, all else shares memory,
    with a draw written to a `Workspace` that memory. Column t of a padded draw holds the log-prob of token t: shift by
    one against the logits.
    """
    if isinstance(draw, PaddedDraw):
        names = (*TOKEN_COLUMNS, "starts", "lengths", "attention_mask")
        tokens: dict[str, Any] = {name: getattr(draw, name) for name in names}
        rows, extras = draw.columns, draw.extras
    else:
        tokens = {name: getattr(draw.rollouts, name) for name in TOKEN_COLUMNS}
        tokens["cu_seqlens"] = draw.rollouts.offsets.astype(np.int32)
        rows = {name: getattr(draw.rollouts, name) for name in ("advantage", "reward")}
        extras = draw.rollouts.extras
    tokens |= {name: rows[name] for name in ("advantage", "reward")}
    tokens |= {"importance_weights": draw.importance_weights, "rollout_ids": draw.rollout_ids}
    for name, column in extras.items():
        values = column.values if isinstance(column, Ragged) else column
        if values.dtype.kind in "biuf":
            tokens[name] = values
            if isinstance(column, Ragged):
                tokens[f"{name}_offsets"] = column.offsets
    return {name: torch.from_numpy(array) for name, array in tokens.items()}
