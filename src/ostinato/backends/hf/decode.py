"""Sampled decoding of many prompts at once with a key/value cache.

Ours because rollouts need the log-prob under which each token was drawn, a random stream of their own, and speed on
models so small that the bookkeeping of a general `generate` costs more than the model.

Shape letters: B completions, L tokens of the longest prompt, K tokens drawn so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.backends.hf.cache import make_cache
from ostinato.backends.hf.draw import draw_tokens
from ostinato.errors import RunError
from ostinato.protocols import Sampling

COMPACT_BELOW = 0.75  # dropping finished rows copies the cache once, about a quarter of a step's work


@dataclass(frozen=True, slots=True)
class Completions:
    """B completions: token ids (end-of-sequence token included), their log-probs, and `truncated` bool (B,) where the
    length limit came first."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    truncated: NDArray[np.bool_]


@torch.inference_mode()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    repeats: Sequence[int],
    uniforms_BK: NDArray[np.float64],
    sampling: Sampling,
    *,
    eos_token_id: int,
    pad_token_id: int,
) -> Completions:
    """Complete prompt i `repeats[i]` times, rows in that order (B in all).

    `uniforms_BK`: numbers in [0, 1), shape (B, sampling.max_new_tokens); number k of a row draws its token k, so the
    tokens of a row do not depend on its companions (up to rounding of the model's arithmetic). Each prompt is read
    once, however often it is repeated. Raises `RunError` when the model gives logits that are not finite.
    """
    device = model.device
    uniforms = torch.from_numpy(uniforms_BK).to(device)
    rows = torch.from_numpy(np.repeat(np.arange(len(prompts)), repeats)).to(device)
    state = _Prefix(model, prompts, sampling.max_new_tokens, pad_token_id)
    tokens_BK = torch.full(uniforms.shape, pad_token_id, device=device)
    logprobs_BK = torch.zeros(uniforms.shape, device=device)
    lengths = torch.zeros(len(rows), dtype=torch.int64, device=device)
    active = torch.arange(len(rows), device=device)
    logits = state.read_prompts()[rows]
    state.select(rows)
    going = torch.ones_like(active, dtype=torch.bool)
    for k in range(sampling.max_new_tokens):
        tokens, logprobs = draw_tokens(logits, uniforms[active, k], sampling)
        tokens_BK[active[going], k], logprobs_BK[active[going], k] = tokens[going], logprobs[going]
        lengths[active] += going
        going &= tokens != eos_token_id
        left = int(going.sum())
        if left == 0 or k + 1 == sampling.max_new_tokens:
            break
        if left < COMPACT_BELOW * len(active):
            keep = going.nonzero().squeeze(-1)
            active, tokens, going = active[keep], tokens[keep], going[keep]
            state.select(keep)
        logits = state.read(tokens)
    unfinished = torch.zeros_like(lengths, dtype=torch.bool)
    unfinished[active] = going
    return _unpadded(tokens_BK, logprobs_BK, lengths, unfinished)


class _Prefix:
    """What the model has read: cache, mask and position of every row."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], room: int, pad_token_id: int) -> None:
        lengths = np.array([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        tokens = np.full((len(prompts), longest), pad_token_id, np.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[longest - len(prompt) :] = prompt
        mask = np.arange(longest) >= (longest - lengths)[:, None]
        self._model = model
        self._tokens = torch.from_numpy(tokens).to(model.device)
        self._mask = torch.from_numpy(mask).long().to(model.device)
        # Without padding the model needs no mask, and transformers then skips building one at every token.
        self._padded = not mask.all()
        self._positions = (self._mask.cumsum(-1) - 1).clamp_(min=0)
        self._cache = make_cache(model.config, longest + room)

    def read_prompts(self) -> Tensor:
        logits = self._forward(self._tokens, self._positions)
        self._positions = self._positions[:, -1:]
        return logits

    def select(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def read(self, tokens: Tensor) -> Tensor:
        self._positions = self._positions + 1
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        return self._forward(tokens.unsqueeze(-1), self._positions)

    def _forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens,
            attention_mask=self._mask if self._padded else None,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def _unpadded(tokens_BK: Tensor, logprobs_BK: Tensor, lengths: Tensor, truncated: Tensor) -> Completions:
    if not bool(logprobs_BK.isfinite().all()):
        raise RunError("decoding met log-probs that are not finite: the weights of the generator are broken")
    tokens, logprobs = tokens_BK.tolist(), logprobs_BK.tolist()
    sizes = lengths.tolist()
    return Completions(
        tokens=[row[:n] for row, n in zip(tokens, sizes, strict=True)],
        logprobs=[row[:n] for row, n in zip(logprobs, sizes, strict=True)],
        truncated=truncated.cpu().numpy(),
    )
