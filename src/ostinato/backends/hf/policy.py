"""Log-probs of the tokens of a padded or a packed batch under a model, with gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ostinato.backends.hf.output_layer import output_layer
from ostinato.batching import Batch
from ostinato.logprobs import selected_logprobs
from ostinato.packing import PackedBatch, unpacked

CHUNKED_FROM = 2**25
"""Positions times vocabulary from which logits are not held all at once: 128 MiB of float32, three times over."""

Read = Callable[..., Tensor]
"""(positions to keep, **inputs of the model) -> logits or hidden states there."""


@dataclass(frozen=True, slots=True)
class Passes:
    """How a model is passed through. `bf16`: autocast.

    `chunked_from`: predicted positions times vocabulary from which `linear_logprobs` takes the place of logits.
    `share_prefixes`: what many rows begin with is read once, in a pass of its own, through a cache. `check_layer`:
    before logits are done without, those of the last position must lead to the same numbers, else they are computed
    after all in a second pass. Where several trainers share one model's weights, all must pass through it equally
    often: there both are off.
    """

    bf16: bool
    chunked_from: int = CHUNKED_FROM
    share_prefixes: bool = True
    check_layer: bool = True


def completion_logprobs(
    model: Any, batch: Batch, temperature_B: NDArray[np.float32], *, bf16: bool, chunked_from: int = CHUNKED_FROM
) -> tuple[Tensor, Tensor, int]:
    """`padded_logprobs` with these passes."""
    return padded_logprobs(model, batch, temperature_B, Passes(bf16, chunked_from))


def padded_logprobs(
    model: Any, batch: Batch, temperature_B: NDArray[np.float32], passes: Passes
) -> tuple[Tensor, Tensor, int]:
    """(log-probs, entropies, first): float32 (B, L-1-first), in nats, at each rollout's own sampling temperature.

    Column j belongs to column first + j of `batch.loss_mask`; the columns before it hold prompt tokens in every row,
    and the logits of a large vocabulary are not computed there. Needs at least one trained token.

    Without logits (see `Passes`) both results are 0 outside the loss mask. That needs an output layer that is
    understood, see `output_layer`.
    """
    first = int(batch.loss_mask.any(0).nonzero()[0])
    tokens = batch.tokens.to(model.device)

    # Padding stands on the right, where a causal model does not look: no attention mask, the fast kernel.
    def forward(read: Read) -> Tensor:
        return _read(model, tokens[:, :-1], first, read, share=passes.share_prefixes)

    mask = batch.loss_mask[:, first:].to(tokens.device)
    temperature = _temperature(temperature_B, tokens.device)
    return *_predicted(model, forward, tokens[:, first + 1 :], temperature, mask, passes), first


def packed_logprobs(
    model: Any, batch: PackedBatch, temperature_B: NDArray[np.float32], passes: Passes
) -> tuple[Tensor, Tensor]:
    """(log-probs, entropies) of a packed batch in one pass, one row a rollout: float32 (B, L-1), in nats.

    0 outside the loss mask, whose logits are not computed. Otherwise as `padded_logprobs`, for a model that keeps the
    rollouts of a row apart. Needs at least one trained token.
    """
    device, tokens = model.device, batch.tokens.to(model.device)
    mask_S = batch.loss_mask[0].to(device)
    places_N = mask_S.nonzero()[:, 0]
    position_ids = batch.position_ids.to(device)

    # Each trained position as a row of its own, so that each may have its own temperature.
    def forward(read: Read) -> Tensor:
        return read(places_N, input_ids=tokens, position_ids=position_ids, use_cache=False).transpose(0, 1)

    following_N1 = tokens[0, places_N + 1][:, None]
    temperature_S = np.repeat(temperature_B, batch.cu_seqlens.diff().numpy())
    temperature = _temperature(temperature_S[places_N.cpu().numpy()], device)
    found = _predicted(model, forward, following_N1, temperature, torch.ones_like(following_N1).bool(), passes)
    logprobs_1S, entropy_1S = (
        torch.zeros(mask_S.shape, device=device).masked_scatter(mask_S, values_N1)[None] for values_N1 in found
    )
    return unpacked(logprobs_1S, batch), unpacked(entropy_1S, batch)


def _temperature(values: NDArray[np.float32], device: torch.device) -> float | Tensor:
    return torch.from_numpy(values).to(device) if np.any(values != values[0]) else float(values[0])


def _predicted(
    model: Any,
    forward: Callable[[Read], Tensor],
    following: Tensor,
    temperature: float | Tensor,
    mask: Tensor,
    passes: Passes,
) -> tuple[Tensor, Tensor]:
    with torch.autocast(following.device.type, torch.bfloat16, enabled=passes.bf16):
        layer = output_layer(model)
        if layer and following.numel() * len(layer.weight) >= passes.chunked_from:
            hidden = _agreeing_hidden(model, forward, following, check=passes.check_layer)
            # Only after the pass are weights there that several trainers share.
            layer = output_layer(model)
            if hidden is not None and layer:
                return layer.logprobs(hidden, following, temperature, mask)
        logits = forward(lambda keep, **inputs: model(**inputs, logits_to_keep=keep).logits)
    return selected_logprobs(logits, following, temperature)


class _HiddenStatesUnseenError(Exception):
    """The model does not tell them."""


def _agreeing_hidden(model: Any, forward: Callable[[Read], Tensor], following: Tensor, *, check: bool) -> Tensor | None:
    """Hidden states to predict `following` from; None when what follows them is not all that the model does."""
    ends: list[Tensor] = []

    def read(keep: int | Tensor, **inputs: Any) -> Tensor:
        last = keep[-1:] if isinstance(keep, Tensor) else 1
        output = model(**inputs, logits_to_keep=last, output_hidden_states=True)
        if output.hidden_states is None:
            raise _HiddenStatesUnseenError
        ends.append(output.logits.detach())
        hidden: Tensor = output.hidden_states[-1]
        return hidden[:, keep] if isinstance(keep, Tensor) else hidden[:, -keep:]

    try:
        hidden = forward(read)
    except _HiddenStatesUnseenError:
        return None
    if not check:
        return hidden
    layer, last = output_layer(model), slice(-len(ends[-1]), None)
    agrees = layer and layer.explains(ends[-1], hidden[last, -1:].detach(), following[last, -1:])
    return hidden if agrees else None


def _read(model: Any, tokens: Tensor, first: int, read: Read, *, share: bool) -> Tensor:
    """What `read` takes from the model at the positions from `first` on. What many rows begin with is read once for all
    of them.

    Gradients reach the shared positions through their keys and values, which every row attends to.
    Source: Prefix Grouper, arXiv 2506.05433.
    """
    split = first + 1
    prefixes, rows = tokens[:, :split].unique(dim=0, return_inverse=True)
    cache = DynamicCache(config=model.config)
    growing = share and all(isinstance(layer, DynamicLayer) for layer in cache.layers)
    if 2 * len(prefixes) > len(tokens) or split == tokens.shape[1] or not growing:
        positions = torch.arange(first, tokens.shape[1], device=tokens.device)
        return read(positions, input_ids=tokens, use_cache=False)
    begun = read(1, input_ids=prefixes, past_key_values=cache, use_cache=True)
    cache.batch_select_indices(rows)
    rest = read(0, input_ids=tokens[:, split:], past_key_values=cache, use_cache=True)
    return torch.cat([begun[rows], rest], dim=1)
