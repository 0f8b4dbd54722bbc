"""The gradients that a step leaves in the parameters: of all replicas, their norms, and their bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.backends.hf.blocks import part, whole
from ostinato.backends.hf.replicas import Replicas


class Gradients:
    """Of these parameters, which every replica has. `sharded`: FSDP has summed them over replicas, and each has a part.

    Every method must be called on all replicas.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], replicas: Replicas, *, sharded: bool) -> None:
        self._parameters, self._replicas, self._sharded = list(parameters), replicas, sharded

    def complete(self) -> None:
        """Sum them over replicas. One that no replica has stays None."""
        if self._sharded or self._replicas.alone:
            return
        found = self._replicas.gather([parameter.grad is not None for parameter in self._parameters])
        there = [parameter for parameter, *has in zip(self._parameters, *found, strict=True) if any(has)]
        for parameter in there:
            if parameter.grad is None:  # a share without a trained token
                parameter.grad = torch.zeros_like(parameter)
        self._replicas.add_up([parameter.grad for parameter in there if parameter.grad is not None])

    def take(self) -> list[Tensor | None]:
        """Put them aside: the parameters have none any more."""
        taken = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return taken

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add what was taken."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def square(self, gradients: Sequence[Tensor | None] | None = None) -> float:
        """|g|^2, summed in float64; None: of the parameters' own."""
        if gradients is None:
            gradients = [parameter.grad for parameter in self._parameters]
        return self._total(sum(_squared_norm(part(one)) for one in gradients if one is not None))

    def dot(self, gradients: Sequence[Tensor | None]) -> float:
        """The inner product with what was taken, summed in float64."""
        pairs = zip(self._parameters, gradients, strict=True)
        return self._total(sum(_dot(parameter.grad, gradient) for parameter, gradient in pairs))

    def clip(self, bound: float) -> float:
        """Their norm, before they are scaled down to `bound`; 0: no bound."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, bound or math.inf)
        return float(whole(norm))

    def _total(self, value: float) -> float:
        return sum(self._replicas.gather(value)) if self._sharded else value


def _squared_norm(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2


def _dot(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None:
        return 0.0
    return float((part(one).flatten() * part(other).flatten()).sum(dtype=torch.float64))
