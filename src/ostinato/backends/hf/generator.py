"""Rollouts from a causal language model of transformers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ostinato.backends.completed import completed_group
from ostinato.backends.hf.adapters import add_adapters, put_adapters
from ostinato.backends.hf.decode import Completions, decode
from ostinato.backends.hf.models import keep_linear_weights_in_bf16, restore
from ostinato.backends.hf.tokenizer import encode_request, pad_token_id
from ostinato.config import LoraConfig
from ostinato.protocols import GroupRequest, Weights
from ostinato.rollouts import Rollouts

Encoded = tuple[GroupRequest, list[int]]


class HFGenerator:
    """A `protocols.Generator` with a copy of `model` of its own, on `device` (None: where it is).

    `bf16`: autocast in the forward pass. `max_batch_tokens` bounds rows times (longest prompt + new tokens) of what is
    decoded together, and with it the memory of the cache; a single group may exceed it. `lora`: `load` takes adapters
    alone, of a trainer whose `lora.sync` is adapter; `model` is what they belong to.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        bf16: bool = False,
        max_batch_tokens: int = 16384,
        lora: LoraConfig | None = None,
        device: str | None = None,
    ) -> None:
        self._model = copy.deepcopy(model).eval().to(device or model.device)
        if bf16:
            keep_linear_weights_in_bf16(self._model)
        self._adapted = lora is not None
        if lora is not None:
            add_adapters(self._model, lora, seed=0)
        self._model.requires_grad_(False)
        self._tokenizer = tokenizer
        self._bf16 = bf16
        self._max_batch_tokens = max_batch_tokens
        self._version = 0

    def load(self, weights: Weights, version: int) -> None:
        """Copy the weights; everything decoded from now on carries `version`.

        Raises `DataError` when they are not those of the model, or with `lora` not those of its adapters.
        """
        if self._adapted:
            put_adapters(self._model, weights)
        else:
            restore(self._model, weights)
        self._version = version

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """Yield the unscored group of each request, in order; requests are decoded together as memory allows.

        Raises `DataError` for a prompt that is empty, has unknown characters or does not fit into the context.
        """
        for batch in self._batches(requests):
            completions = self._decode(batch)
            first = 0
            for request, prompt in batch:
                yield self._group(request, prompt, completions, first)
                first += request.group_size

    def _batches(self, requests: Sequence[GroupRequest]) -> Iterator[list[Encoded]]:
        batch: list[Encoded] = []
        rows = longest = 0
        for request in requests:
            prompt = encode_request(self._tokenizer, request, self._model.config.max_position_embeddings)
            longest = max(longest, len(prompt))
            tokens = (rows + request.group_size) * (longest + request.sampling.max_new_tokens)
            if batch and (tokens > self._max_batch_tokens or request.sampling != batch[0][0].sampling):
                yield batch
                batch, rows, longest = [], 0, len(prompt)
            batch.append((request, prompt))
            rows += request.group_size
        if batch:
            yield batch

    def _decode(self, batch: Sequence[Encoded]) -> Completions:
        sampling = batch[0][0].sampling
        uniforms = [
            np.random.default_rng([*request.seed]).random((request.group_size, sampling.max_new_tokens))
            for request, _ in batch
        ]
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._bf16):
            return decode(
                self._model,
                [prompt for _, prompt in batch],
                [request.group_size for request, _ in batch],
                np.concatenate(uniforms),
                sampling,
                eos_token_id=self._tokenizer.eos_token_id,
                pad_token_id=pad_token_id(self._tokenizer),
            )

    def _group(self, request: GroupRequest, prompt: list[int], completions: Completions, first: int) -> Rollouts:
        rows = slice(first, first + request.group_size)
        return completed_group(
            request,
            prompt,
            completions.tokens[rows],
            completions.logprobs[rows],
            completions.truncated[rows],
            versions=self._version,
        )
