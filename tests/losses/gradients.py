"""Autograd against central differences."""

from collections.abc import Callable

import torch
from torch import Tensor


def gradient(loss: Tensor, inputs: Tensor) -> Tensor:
    """d loss / d inputs."""
    return torch.autograd.grad(loss, inputs)[0]


def assert_matches_finite_differences(loss: Callable[[Tensor], Tensor], inputs: Tensor, step: float = 1e-6) -> None:
    """Compare d loss / d inputs, float64, with (loss(x + step) - loss(x - step)) / (2 step) in every coordinate."""
    point = inputs.detach()
    slopes = torch.empty(point.numel(), dtype=torch.float64)
    for i, direction in enumerate(torch.eye(point.numel(), dtype=torch.float64) * step):
        shift = direction.view_as(point)
        slopes[i] = (loss(point + shift) - loss(point - shift)).item() / (2 * step)
    torch.testing.assert_close(gradient(loss(inputs), inputs).flatten(), slopes, atol=1e-9, rtol=1e-7)
