"""What the arguments of a loss must look like: nothing broadcasts by accident, no impossible setting is trained on."""

from __future__ import annotations

import itertools
import sys

import torch
from torch import Tensor

from ostinato.errors import ConfigError, DataError


def check_inputs(logprobs_BL: Tensor, mask_BL: Tensor, **others: Tensor | None) -> None:
    """Raise `DataError` unless the shapes are those of the names and the types fit; looks at no value.

    A name that ends in `_BL` must have the shape (B, L) of `logprobs_BL`, one in `_B` the shape (B,); None passes.
    `mask_BL` and `replayed_B` are bool, everything else in `_BL` is of a real float type.
    """
    given = {"logprobs_BL": logprobs_BL, "mask_BL": mask_BL, **others}
    for name, tensor in given.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            raise DataError(f"{name} is {type(tensor).__name__}, expected a torch.Tensor")
    if logprobs_BL.ndim != 2:
        raise DataError(f"logprobs_BL has shape {tuple(logprobs_BL.shape)}, expected (B, L)")
    shape_BL, shape_B = logprobs_BL.shape, logprobs_BL.shape[:1]
    for name, tensor in given.items():
        shape = shape_BL if name.endswith("_BL") else shape_B
        if tensor is not None and tensor.shape != shape:
            raise DataError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    for name, tensor in given.items():
        if tensor is None:
            continue
        if name in ("mask_BL", "replayed_B"):
            if tensor.dtype != torch.bool:
                raise DataError(f"{name} is {tensor.dtype}, expected torch.bool")
        elif name.endswith("_BL") and not tensor.is_floating_point():
            raise DataError(f"{name} is {tensor.dtype}, expected a float type")


def check_clip(clip_low: float, clip_high: float) -> None:
    """Raise `ConfigError` unless 0 <= clip_low <= 1 <= clip_high: bounds on the ratio itself."""
    if not _rising(0, clip_low, 1, clip_high):
        raise ConfigError(f"expected 0 <= clip_low <= 1 <= clip_high, got clip_low {clip_low}, clip_high {clip_high}")


def check_above(name: str, value: float, bound: float) -> None:
    """Raise `ConfigError` unless value > bound, infinity included."""
    if not (_rising(bound, value) and value != bound):
        raise ConfigError(f"{name} must be above {bound:g}, got {value}")


def check_finite(name: str, value: float) -> None:
    """Raise `ConfigError` for infinity or NaN: infinity times a log-ratio of 0 would be NaN."""
    if not _rising(-sys.float_info.max, value, sys.float_info.max):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")


def check_range(low_name: str, low: float, high_name: str, high: float) -> None:
    """Raise `ConfigError` unless 0 <= low <= high."""
    if not _rising(0, low, high):
        raise ConfigError(f"expected 0 <= {low_name} <= {high_name}, got {low} and {high}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _rising(*values: float) -> bool:
    """Whether each value is at least the one before; False where one is NaN or no number."""
    try:
        return all(low <= high for low, high in itertools.pairwise(values))
    except TypeError:
        return False
