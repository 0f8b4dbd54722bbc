"""Log-probs of the tokens of a padded batch under a model, with gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ostinato.backends.hf.output_layer import OutputLayer, output_layer
from ostinato.batching import Batch
from ostinato.logprobs import selected_logprobs

CHUNKED_FROM = 2**25
"""Positions times vocabulary from which logits are not held all at once: 128 MiB of float32, three times over."""


def completion_logprobs(
    model: Any, batch: Batch, temperature_B: NDArray[np.float32], *, bf16: bool, chunked_from: int = CHUNKED_FROM
) -> tuple[Tensor, Tensor, int]:
    """(log-probs, entropies, first): float32 (B, L-1-first), in nats, at each rollout's own sampling temperature.

    Column j belongs to column first + j of `batch.loss_mask`; the columns before it hold prompt tokens in every row,
    and the logits of a large vocabulary are not computed there. Needs at least one trained token.

    From `chunked_from` predicted positions times vocabulary on, `linear_logprobs` takes the place of logits, and both
    results are 0 outside the loss mask. That needs an output layer that is understood, see `output_layer`, and the
    model's own logits of the last position must lead to the same numbers, else the logits are computed after all.
    """
    first = int(batch.loss_mask.any(0).nonzero()[0])
    tokens = batch.tokens.to(model.device)
    temperature: float | Tensor = float(temperature_B[0])
    if np.any(temperature_B != temperature_B[0]):
        temperature = torch.from_numpy(temperature_B).to(tokens.device)
    following = tokens[:, first + 1 :]
    # Padding stands on the right, where a causal model does not look: no attention mask, the fast kernel.
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
        layer = output_layer(model)
        if layer and following.numel() * len(layer.weight) >= chunked_from:
            hidden = _agreeing_hidden(model, layer, tokens, first)
            if hidden is not None:
                mask = batch.loss_mask[:, first:].to(tokens.device)
                return *layer.logprobs(hidden, following, temperature, mask), first
        logits = _read(model, tokens[:, :-1], first, lambda keep, **inputs: model(**inputs, logits_to_keep=keep).logits)
    logprobs, entropy = selected_logprobs(logits, following, temperature)
    return logprobs, entropy, first


def _agreeing_hidden(model: Any, layer: OutputLayer, tokens: Tensor, first: int) -> Tensor | None:
    """Hidden states at the positions from `first` on; None when what follows them is not all that the model does."""
    ends: list[Tensor] = []

    def read(keep: int | Tensor, **inputs: Any) -> Tensor:
        output = model(**inputs, logits_to_keep=1, output_hidden_states=True)
        ends.append(output.logits.detach())
        hidden: Tensor = output.hidden_states[-1]
        return hidden[:, keep] if isinstance(keep, Tensor) else hidden[:, -keep:]

    hidden = _read(model, tokens[:, :-1], first, read)
    return hidden if layer.explains(ends[-1], hidden[:, -1:].detach(), tokens[:, -1:]) else None


def _read(model: Any, tokens: Tensor, first: int, read: Callable[..., Tensor]) -> Tensor:
    """What `read` takes from the model at the positions from `first` on. What many rows begin with is read once for all
    of them.

    Gradients reach the shared positions through their keys and values, which every row attends to.
    Source: Prefix Grouper, arXiv 2506.05433.
    """
    split = first + 1
    prefixes, rows = tokens[:, :split].unique(dim=0, return_inverse=True)
    cache = DynamicCache(config=model.config)
    growing = all(isinstance(layer, DynamicLayer) for layer in cache.layers)
    if 2 * len(prefixes) > len(tokens) or split == tokens.shape[1] or not growing:
        positions = torch.arange(first, tokens.shape[1], device=tokens.device)
        return read(positions, input_ids=tokens, use_cache=False)
    begun = read(1, input_ids=prefixes, past_key_values=cache, use_cache=True)
    cache.batch_select_indices(rows)
    rest = read(0, input_ids=tokens[:, split:], past_key_values=cache, use_cache=True)
    return torch.cat([begun[rows], rest], dim=1)
