"""What a buffer delivers as torch tensors, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.buffer import PaddedDraw
from ostinato.errors import MissingExtraError
from ostinato.protocols import Draw
from ostinato.rollouts import TOKEN_COLUMNS

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "hf") from error


def as_tensors(draw: Draw | PaddedDraw) -> dict[str, Tensor]:
    """The columns of a draw by name, as tensors in the memory of its arrays: to change one is to change the other.

    `tokens` int32, `loss_mask` bool, `behavior_logprobs` float32: (L,) of a `Draw`, (B, width) of a `PaddedDraw`.
    `advantage`, `reward`, `importance_weights` float64 and `rollout_ids` int64 (B,). Of a `Draw` also `cu_seqlens`
    int32 (B+1,), where each rollout begins, as attention kernels for packed sequences want it, a copy; of a
    `PaddedDraw` `starts` and `lengths` int64 (B,). Draws written to a `Workspace` share that memory.
    """
    if isinstance(draw, PaddedDraw):
        tokens: dict[str, Any] = {name: getattr(draw, name) for name in (*TOKEN_COLUMNS, "starts", "lengths")}
        rows = draw.columns
    else:
        tokens = {name: getattr(draw.rollouts, name) for name in TOKEN_COLUMNS}
        tokens["cu_seqlens"] = draw.rollouts.offsets.astype(np.int32)
        rows = {name: getattr(draw.rollouts, name) for name in ("advantage", "reward")}
    tokens |= {name: rows[name] for name in ("advantage", "reward")}
    tokens |= {"importance_weights": draw.importance_weights, "rollout_ids": draw.rollout_ids}
    return {name: torch.from_numpy(array) for name, array in tokens.items()}
