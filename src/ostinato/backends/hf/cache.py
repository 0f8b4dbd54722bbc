"""Key/value cache with room for the whole completion."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer, shape (B, heads, L, head dimension), in a buffer with room for `capacity` tokens.

    transformers' own layer concatenates at every token, which on small models costs more than the attention itself.
    The buffer is made at the first token after the prompt, so that a prompt is kept once however often it is repeated.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new tokens; returns all keys and values so far."""
        if self.keys is None or self.values is None:
            return super().update(key_states, value_states, *args, **kwargs)
        if self._buffers is None:
            self._buffers = self._grown(self.keys), self._grown(self.values)
        length = self.keys.shape[-2]
        stop = length + key_states.shape[-2]
        keys, values = self._buffers
        keys[:, :, length:stop], values[:, :, length:stop] = key_states, value_states
        self.keys, self.values = keys[:, :, :stop], values[:, :, :stop]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the given rows, repeats allowed."""
        super().batch_select_indices(indices)
        self._buffers = None

    def _grown(self, states: Tensor) -> Tensor:
        batch, heads, length, width = states.shape
        buffer = states.new_empty(batch, heads, self._capacity, width)
        buffer[:, :, :length] = states
        return buffer


def make_cache(config: Any, capacity: int) -> Cache:
    """The cache that the architecture needs; its full-attention layers hold `capacity` tokens without copying."""
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
