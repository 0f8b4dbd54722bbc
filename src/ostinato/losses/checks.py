"""What the arguments of a loss must look like: nothing broadcasts by accident, no impossible setting is trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.errors import ConfigError, DataError


def check_inputs(logprobs_BL: Tensor, mask_BL: Tensor, **others: Tensor | None) -> None:
    """Raise `DataError` unless the shapes are those of the names and the mask is bool; looks at no value.

    A name that ends in `_BL` must have the shape (B, L) of `logprobs_BL`, one in `_B` the shape (B,); None passes.
    """
    if logprobs_BL.ndim != 2:
        raise DataError(f"logprobs_BL has shape {tuple(logprobs_BL.shape)}, expected (B, L)")
    shape_BL, shape_B = logprobs_BL.shape, logprobs_BL.shape[:1]
    for name, tensor in {"mask_BL": mask_BL, **others}.items():
        shape = shape_BL if name.endswith("_BL") else shape_B
        if tensor is not None and tensor.shape != shape:
            raise DataError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if mask_BL.dtype != torch.bool:
        raise DataError(f"mask_BL is {mask_BL.dtype}, expected torch.bool")


def check_clip(clip_low: float, clip_high: float) -> None:
    """Raise `ConfigError` unless 0 <= clip_low <= 1 <= clip_high: bounds on the ratio itself."""
    if not 0 <= clip_low <= 1 <= clip_high:
        raise ConfigError(f"expected 0 <= clip_low <= 1 <= clip_high, got clip_low {clip_low}, clip_high {clip_high}")


def check_above(name: str, value: float, bound: float) -> None:
    """Raise `ConfigError` unless value > bound."""
    if not value > bound:
        raise ConfigError(f"{name} must be above {bound:g}, got {value}")


def check_range(low_name: str, low: float, high_name: str, high: float) -> None:
    """Raise `ConfigError` unless 0 <= low <= high."""
    if not 0 <= low <= high:
        raise ConfigError(f"expected 0 <= {low_name} <= {high_name}, got {low} and {high}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
