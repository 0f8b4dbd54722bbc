"""Tiny models, their weights scaled up so that predictions differ clearly from uniform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ostinato.backends.hf.models import build_model
from ostinato.backends.hf.tokenizer import character_tokenizer
from ostinato.config import ModelConfig
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts

torch.set_num_threads(1)


def sharpened(model: Any, factor: float = 12.0) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(factor)
    return model


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return character_tokenizer()


@pytest.fixture(scope="session")
def qwen(tokenizer: Any) -> Any:
    config = ModelConfig(hidden_size=16, layers=2, heads=2, kv_heads=1, intermediate_size=32)
    return sharpened(build_model(config, tokenizer, seed=1))


@pytest.fixture(scope="session")
def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return sharpened(transformers.LlamaForCausalLM(config).eval())


def draw_of(rollouts: Rollouts, weights: Any = 1.0) -> Draw:
    n = len(rollouts)
    zeros = np.zeros(n, np.int64)
    return Draw(
        rollouts=rollouts,
        rollout_ids=np.arange(n),
        importance_weights=np.broadcast_to(np.asarray(weights, np.float64), n).copy(),
        staleness=zeros,
        residence=zeros,
        uses=zeros,
        steps_since_last_use=zeros - 1,
    )


@pytest.fixture
def make_draw() -> Any:
    return draw_of


@pytest.fixture(scope="module")
def make_module_draw() -> Any:
    return draw_of
