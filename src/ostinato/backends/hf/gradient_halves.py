"""The gradients of the fresh and of the replayed rollouts of one batch, apart and added up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ostinato.stats import gradient_figures


class GradientHalves:
    """Watches a backward pass in two parts: `end_part` after each of them. Costs the memory of one more gradient."""

    def __init__(self, model: Any) -> None:
        self._parameters = list(model.parameters())
        self._first: list[Tensor | None] | None = None
        self._squares = (0.0, 0.0, 0.0)

    def end_part(self) -> None:
        """The first time: put the gradient aside. The second time: compare the two, and leave their sum."""
        if self._first is None:
            self._first = [parameter.grad for parameter in self._parameters]
            for parameter in self._parameters:
                parameter.grad = None
            return
        first, second = self._first, [parameter.grad for parameter in self._parameters]
        self._squares = _square(first), _square(second), sum(map(_dot, first, second))
        for parameter, one in zip(self._parameters, first, strict=True):
            if one is not None:
                parameter.grad = one if parameter.grad is None else parameter.grad.add_(one)

    def figures(self) -> dict[str, float]:
        """`grad_norm_fresh`, `grad_norm_replayed` and, where neither is 0, `grad_cosine` (`stats.gradient_figures`)."""
        fresh, replayed, dot = self._squares
        figures = gradient_figures(fresh_square=fresh, replayed_square=replayed, dot=dot)
        del figures["grad_norm"]  # the trainer knows it, of the sum
        return figures


def squared_norm(gradient: Tensor) -> float:
    """|g|^2, summed in float64."""
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2


def _square(gradients: list[Tensor | None]) -> float:
    return sum(squared_norm(gradient) for gradient in gradients if gradient is not None)


def _dot(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None:
        return 0.0
    return float((one.flatten() * other.flatten()).sum(dtype=torch.float64))
