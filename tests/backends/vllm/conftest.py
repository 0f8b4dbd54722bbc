"""One running engine for all tests of the room: starting one takes longer than everything else here."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.backends.hf.models import build_model, snapshot
from ostinato.backends.hf.tokenizer import character_tokenizer
from ostinato.config import ModelConfig, VllmConfig
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollouts import Rollouts

torch.set_num_threads(1)

SIZES = ModelConfig(hidden_size=64, layers=2, heads=2, kv_heads=1, intermediate_size=96)


def pytest_configure(config: Any) -> None:
    # vLLM's client closes its sockets and leaves their context to the garbage collector.
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context <zmq:ResourceWarning")


def request(i: int, prompt: str = "12+3=", size: int = 4, *, seed: int | None = None, **sampling: Any) -> GroupRequest:
    chosen = Sampling(**{"temperature": 0.9, "max_new_tokens": 12, **sampling})
    return GroupRequest(Task(prompt, "", 100 + i, "words"), i, size, (7, i if seed is None else seed), chosen, 4)


def reference_logprobs(model: Any, group: Rollouts, sampling: Sampling) -> list[np.ndarray]:
    """Of each completion's tokens, by one plain forward pass a rollout: what the trainer computes."""
    from ostinato.backends.hf.draw import sampling_logprobs

    rows = []
    for i in range(len(group)):
        tokens = torch.from_numpy(group.tokens[group.offsets[i] : group.offsets[i + 1]]).long()
        with torch.no_grad():
            logits = model(input_ids=tokens[None, :-1]).logits[0]
        logprobs = sampling_logprobs(logits, sampling).gather(-1, tokens[1:, None])[:, 0]
        rows.append(logprobs[group.prompt_length[i] - 1 :].numpy())
    return rows


def gap(model: Any, group: Rollouts, sampling: Sampling) -> float:
    """The largest difference between the engine's log-probs and the model's."""
    return float(np.abs(np.concatenate(reference_logprobs(model, group, sampling)) - behavior(group)).max())


def behavior(group: Rollouts) -> np.ndarray:
    return group.behavior_logprobs[group.loss_mask]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return character_tokenizer()


@pytest.fixture(scope="session")
def make_model(tokenizer: Any) -> Callable[..., Any]:
    """A model of random weights, larger than at a start of training so that predictions differ clearly. `endless`: it
    hardly ever ends a completion by itself."""

    def make(seed: int, *, endless: bool = False) -> Any:
        model = build_model(SIZES, tokenizer, seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(8.0)
                else:
                    generator = torch.Generator().manual_seed(seed)
                    parameter.mul_(1 + 0.2 * torch.rand(parameter.shape, generator=generator))
            if endless:
                model.get_output_embeddings().weight[tokenizer.eos_token_id] = 0.0
        return model

    return make


@pytest.fixture(scope="session")
def first(make_model: Any) -> Any:
    return make_model(1)


@pytest.fixture(scope="session")
def second(make_model: Any) -> Any:
    return make_model(2)


@pytest.fixture(scope="session")
def running(make_model: Any, tokenizer: Any, tmp_path_factory: Any) -> Iterator[Any]:
    from ostinato.backends.vllm.generator import VLLMGenerator
    from ostinato.backends.vllm.initial_model import saved_model

    directory = saved_model(make_model(1), tokenizer, tmp_path_factory.mktemp("vllm"))
    engine = VLLMGenerator(directory, VllmConfig(kv_cache_gib=0.25))
    engine.start()
    yield engine
    engine.close()
    gc.collect()  # while the filter above holds


@pytest.fixture
def engine(running: Any, first: Any) -> Any:
    """The engine with the weights of `first` as version 0."""
    running.load(snapshot(first), 0)
    return running


@pytest.fixture
def pausing(engine: Any, monkeypatch: Any) -> Callable[..., Any]:
    """The engine with other settings of `pause` and `clear_cache`, which it reads at every load."""

    def set_to(pause: str, *, clear_cache: bool = True, **settings: Any) -> Any:
        changed = replace(engine._config, pause=pause, clear_cache=clear_cache, **settings)
        monkeypatch.setattr(engine, "_config", changed)
        return engine

    return set_to
