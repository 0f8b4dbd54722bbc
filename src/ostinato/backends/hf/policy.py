"""Log-probs of the tokens of a padded batch under a model, with gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ostinato.batching import Batch, selected_logprobs


def completion_logprobs(
    model: Any, batch: Batch, temperature_B: NDArray[np.float32], *, bf16: bool
) -> tuple[Tensor, Tensor, int]:
    """(log-probs, entropies, first): float32 (B, L-1-first), in nats, at each rollout's own sampling temperature.

    Column j belongs to column first + j of `batch.loss_mask`; the columns before it hold prompt tokens in every row,
    and the logits of a large vocabulary are not computed there. Needs at least one trained token.
    """
    first = int(batch.loss_mask.any(0).nonzero()[0])
    tokens = batch.tokens.to(model.device)
    # Padding stands on the right, where a causal model does not look: no attention mask, the fast kernel.
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
        logits = _logits(model, tokens[:, :-1], first)
    temperature: float | Tensor = float(temperature_B[0])
    if np.any(temperature_B != temperature_B[0]):
        temperature = torch.from_numpy(temperature_B).to(tokens.device)
    logprobs, entropy = selected_logprobs(logits, tokens[:, first + 1 :], temperature)
    return logprobs, entropy, first


def _logits(model: Any, tokens: Tensor, first: int) -> Tensor:
    """Logits at the positions from `first` on. What many rows begin with is read once for all of them.

    Gradients reach the shared positions through their keys and values, which every row attends to.
    Source: Prefix Grouper, arXiv 2506.05433.
    """
    split = first + 1
    prefixes, rows = tokens[:, :split].unique(dim=0, return_inverse=True)
    cache = DynamicCache(config=model.config)
    growing = all(isinstance(layer, DynamicLayer) for layer in cache.layers)
    if 2 * len(prefixes) > len(tokens) or split == tokens.shape[1] or not growing:
        positions = torch.arange(first, tokens.shape[1], device=tokens.device)
        logits: Tensor = model(input_ids=tokens, use_cache=False, logits_to_keep=positions).logits
        return logits
    begun = model(input_ids=prefixes, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    cache.batch_select_indices(rows)
    rest = model(input_ids=tokens[:, split:], past_key_values=cache, use_cache=True).logits
    return torch.cat([begun[rows], rest], dim=1)
