"""vLLM as a generator here: tokens a second beside transformers, seconds of a weight swap, gaps of log-probs.

python -m benchmarks.vllm_engine            # a built model of 0.3 M parameters
python -m benchmarks.vllm_engine smollm2    # SmolLM2-135M-Instruct, after make smollm2
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ostinato.backends.completed import TOKEN_VERSIONS
from ostinato.backends.hf.draw import sampling_logprobs
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import build_model, load_model, snapshot
from ostinato.backends.hf.tokenizer import character_tokenizer
from ostinato.backends.vllm.generator import VLLMGenerator
from ostinato.backends.vllm.initial_model import saved_model
from ostinato.cli.backends import cache_directory
from ostinato.config import ModelConfig, VllmConfig
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollouts import Rollouts, concatenate

ROUNDS = 3


def main(name: str) -> dict[str, Any]:
    """All figures."""
    tiny = name == "tiny"
    if tiny:
        tokenizer: Any = character_tokenizer()
        model = build_model(ModelConfig(heads=2, kv_heads=2), tokenizer, 0)
    else:
        model, tokenizer = load_model(name, cache_directory())
    new, group, prompts = (32, 12, 16) if tiny else (32, 8, 2)
    sampling = Sampling(temperature=0.8, max_new_tokens=new)
    requests = [
        GroupRequest(Task(f"What is {i} + 3?", "", i, "sums"), i, group, (1, i), sampling) for i in range(prompts)
    ]
    weights = snapshot(model)
    other = {key: value * 1.02 for key, value in weights.items()}
    with tempfile.TemporaryDirectory() as directory:
        engine = VLLMGenerator(saved_model(model, tokenizer, Path(directory)), VllmConfig(pause="keep"))
        begun = time.perf_counter()
        engine.start()
        figures = {"start_s": time.perf_counter() - begun, "parameters": sum(w.numel() for w in weights.values())}
        figures["vllm_tokens_per_s"] = tokens_per_s(engine.stream, requests)
        figures["transformers_tokens_per_s"] = tokens_per_s(HFGenerator(model, tokenizer).stream, requests)
        figures["idle_swap_s"] = statistics.median(
            seconds(lambda v=v: engine.load(other if v % 2 else weights, v)) for v in range(1, 2 * ROUNDS + 1)
        )
        figures["gap_nats"] = gap(model, concatenate(list(engine.stream(requests))), sampling)
        for clear in (True, False):
            figures |= swap_under_load(engine, model, weights, other, requests, clear)
        engine.close()
    return figures


def tokens_per_s(stream: Callable[..., Any], requests: list[GroupRequest]) -> float:
    """Median of `ROUNDS`, after one that does not count."""
    rates = []
    for _ in range(ROUNDS + 1):
        begun = time.perf_counter()
        tokens = sum(int(done.completion_lengths.sum()) for done in stream(requests))
        rates.append(tokens / (time.perf_counter() - begun))
    return statistics.median(rates[1:])


def seconds(work: Callable[[], None]) -> float:
    """What it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def swap_under_load(
    engine: VLLMGenerator, model: Any, weights: Any, other: Any, requests: list[GroupRequest], clear: bool
) -> dict[str, float]:
    """Seconds of a swap while all requests run, and the largest gap to the weights that each token is stamped with."""
    engine._config = VllmConfig(pause="keep", clear_cache=clear)
    engine.load(weights, 100)
    done: list[Rollouts] = []
    thread = threading.Thread(target=lambda: done.extend(engine.stream(requests)))
    thread.start()
    short = replace(requests[0], group_size=1, sampling=replace(requests[0].sampling, max_new_tokens=8))
    next(engine.stream([short]))  # every step draws a token of each: so far are the others too
    swap_s = seconds(lambda: engine.load(other, 101))
    thread.join()
    rollouts = concatenate(done)
    stamped = rollouts.extras[TOKEN_VERSIONS].values[rollouts.loss_mask] == 101
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(other[key])
    gaps = np.abs(logprobs(model, rollouts, requests[0].sampling) - rollouts.behavior_logprobs[rollouts.loss_mask])
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(weights[key])
    how = "cleared" if clear else "kept"
    return {
        f"{how}_cache_swap_s": swap_s,
        f"{how}_cache_tokens_after": int(stamped.sum()),
        f"{how}_cache_gap_nats": float(gaps[stamped].max(initial=0.0)),
    }


def gap(model: Any, rollouts: Rollouts, sampling: Sampling) -> float:
    """The largest difference of a log-prob between vLLM and transformers."""
    return float(np.abs(logprobs(model, rollouts, sampling) - rollouts.behavior_logprobs[rollouts.loss_mask]).max())


@torch.inference_mode()
def logprobs(model: Any, rollouts: Rollouts, sampling: Sampling) -> Any:
    """Of all completion tokens, by one forward pass a rollout."""
    rows = []
    for i, prompt in enumerate(rollouts.prompt_length.tolist()):
        tokens = torch.from_numpy(rollouts.tokens[rollouts.offsets[i] : rollouts.offsets[i + 1]]).long()
        drawn = sampling_logprobs(model(input_ids=tokens[None, :-1]).logits[0], sampling)
        rows.append(drawn.gather(-1, tokens[1:, None])[prompt - 1 :, 0].numpy())
    return np.concatenate(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(sys.argv[1] if len(sys.argv) > 1 else "tiny"), indent=1))
