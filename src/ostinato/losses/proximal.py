"""A proximal policy that follows the trained one slowly."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ostinato.errors import ConfigError, DataError


class ProximalAverage:
    """Moving average of the parameters after each gradient step, without the bias of its start: PPO-EWMA.

        W' = d W + 1        prox' = (d W prox + theta) / W'

    d: `decay` in [0, 1). Its log-probs are the `proximal_logprobs_BL` of `decoupled_ppo`. It begins at the parameters
    that it is given, with W = `weight`: 1 counts them as one step, 0 lets the first update replace them. Raises
    `ConfigError` for another decay or a negative weight.
    Source: Hilton et al., arXiv 2110.00641.
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, decay: float, weight: float = 1.0) -> None:
        if not 0 <= decay < 1 or not 0 <= weight < float("inf"):
            raise ConfigError(f"expected a decay in [0, 1) and a weight of at least 0, got {decay} and {weight}")
        self._decay, self.weight = decay, weight
        self.parameters = {name: value.detach().clone() for name, value in parameters.items()}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, Tensor]) -> None:
        """Take in the parameters after a gradient step. Raises `DataError` for other names or shapes."""
        shapes = {name: value.shape for name, value in parameters.items()}
        if shapes != {name: value.shape for name, value in self.parameters.items()}:
            raise DataError("a proximal average takes parameters of the names and shapes it began with")
        kept = self._decay * self.weight
        self.weight = kept + 1
        for name, value in parameters.items():
            # kept / (kept + 1) of the old, 1 / (kept + 1) of the new.
            self.parameters[name].lerp_(value.detach().to(self.parameters[name].dtype), 1 / self.weight)
