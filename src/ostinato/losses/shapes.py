"""What the inputs of a loss must look like: nothing broadcasts by accident."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.errors import DataError


def check_inputs(
    logprobs_BL: Tensor,
    mask_BL: Tensor,
    advantages_B: Tensor,
    *,
    behavior_logprobs_BL: Tensor | None,
    weights_B: Tensor | None,
) -> None:
    """Raise `DataError` unless the shapes are those of the names and the mask is bool; looks at no value."""
    if logprobs_BL.ndim != 2:
        raise DataError(f"logprobs_BL has shape {tuple(logprobs_BL.shape)}, expected (B, L)")
    shape_BL, shape_B = logprobs_BL.shape, logprobs_BL.shape[:1]
    for name, tensor, shape in (
        ("mask_BL", mask_BL, shape_BL),
        ("behavior_logprobs_BL", behavior_logprobs_BL, shape_BL),
        ("advantages_B", advantages_B, shape_B),
        ("weights_B", weights_B, shape_B),
    ):
        if tensor is not None and tensor.shape != shape:
            raise DataError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if mask_BL.dtype != torch.bool:
        raise DataError(f"mask_BL is {mask_BL.dtype}, expected torch.bool")
