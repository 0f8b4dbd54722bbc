"""Log-probs of the tokens of a padded batch under a model, with gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    positions = torch.arange(first, tokens.shape[1] - 1, device=tokens.device)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
        # Padding stands on the right, where a causal model does not look: no attention mask, the fast kernel.
        logits = model(input_ids=tokens, use_cache=False, logits_to_keep=positions).logits
    temperature: float | Tensor = float(temperature_B[0])
    if np.any(temperature_B != temperature_B[0]):
        temperature = torch.from_numpy(temperature_B).to(tokens.device)
    logprobs, entropy = selected_logprobs(logits, tokens[:, first + 1 :], temperature)
    return logprobs, entropy, first
