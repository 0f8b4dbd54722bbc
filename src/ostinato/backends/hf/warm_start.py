"""Supervised fine-tuning until the model is right now and then: where reinforcement learning can start."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import quiet, snapshot
from ostinato.backends.hf.policy import completion_logprobs
from ostinato.backends.hf.saving import saving
from ostinato.backends.hf.tokenizer import encode_answer, encode_prompt, pad_token_id
from ostinato.batching import padded_batch
from ostinato.config import WarmStartConfig
from ostinato.errors import CheckpointError, RunError
from ostinato.evaluation import evaluate
from ostinato.losses.reduce import token_mean
from ostinato.protocols import Sampling, Scorer, Task, TaskStream
from ostinato.rollouts import Rollouts
from ostinato.telemetry import directory_in_place, read_json_object, write_json

CHECK_PROMPTS = 512
STEPS_BETWEEN_CHECKS, STEPS_NEAR_TARGET = 25, 5
REVISION = 2
"""To be raised by whoever changes the arithmetic of a warm start, in `policy`, `decode` or here."""

REPORT = "warm_start.json"


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """Sampled accuracy reached on `prompts` held-out prompts (one completion each) after `steps` steps."""

    accuracy: float
    steps: int
    prompts: int


def warm_start(
    model: Any,
    tokenizer: Any,
    tasks: TaskStream,
    scorer: Scorer,
    config: WarmStartConfig,
    *,
    sampling: Sampling,
    seed: int,
    cache: Path,
) -> tuple[Any, WarmStartReport]:
    """Train `model` in place on the tasks' answers until its sampled accuracy reaches the target, or look in `cache`.

    Returns the model and what it reached. The cache has one directory (model, tokenizer, `warm_start.json`) for each
    combination of initial weights, prompts, sampling, settings and seed. Raises `RunError` when `max_steps` do not
    suffice, `OSError` when the cache cannot be written, `CheckpointError` when what it holds is damaged.
    """
    directory = cache / f"warm-start-{_key(model, tasks, config, sampling, seed)}"
    if not (directory / REPORT).exists():
        report = _train(model, tokenizer, tasks, scorer, config, sampling, seed)
        with directory_in_place(directory) as fresh, saving(directory), quiet():
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)
            write_json(fresh / REPORT, asdict(report) | {"target_accuracy": config.target_accuracy})
    return _load(directory, model.device)


def _load(directory: Path, device: torch.device) -> tuple[Any, WarmStartReport]:
    try:
        stored = read_json_object(directory / REPORT)
        report = WarmStartReport(float(stored["accuracy"]), int(stored["steps"]), int(stored["prompts"]))
        with quiet():
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    except Exception as error:  # a damaged file can make its reader raise anything
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"warm start {directory} cannot be read: {reason}; without this directory it is made again"
        ) from error
    return model.to(device).eval(), report


def _train(
    model: Any,
    tokenizer: Any,
    tasks: TaskStream,
    scorer: Scorer,
    config: WarmStartConfig,
    sampling: Sampling,
    seed: int,
) -> WarmStartReport:
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    generator = HFGenerator(model, tokenizer)
    held_out = tasks.test[:CHECK_PROMPTS]
    best, check_at = 0.0, STEPS_BETWEEN_CHECKS
    for step in range(1, config.max_steps + 1):
        first = (step - 1) * config.batch_size
        batch = [tasks.train(i) for i in range(first, first + config.batch_size)]
        _supervised_step(model, tokenizer, optimizer, batch)
        if step not in (check_at, config.max_steps):
            continue
        generator.load(snapshot(model), step)
        accuracy = evaluate(generator, scorer, held_out, sampling=sampling, samples=1, seed=(seed, step)).accuracy
        if accuracy >= config.target_accuracy:
            return WarmStartReport(accuracy, step, len(held_out))
        best = max(best, accuracy)
        # Accuracy rises steeply once it rises: look often then, so that training stops near the target.
        check_at = step + (STEPS_BETWEEN_CHECKS if accuracy < config.target_accuracy / 4 else STEPS_NEAR_TARGET)
    raise RunError(
        f"warm start: sampled accuracy {best:.3f} after warm_start.max_steps {config.max_steps}, "
        f"expected warm_start.target_accuracy {config.target_accuracy:g}"
    )


def _supervised_step(model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, tasks: Sequence[Task]) -> None:
    answers = [encode_answer(tokenizer, task.answer) for task in tasks]
    rollouts = Rollouts.from_completions(
        [encode_prompt(tokenizer, task.prompt) for task in tasks],
        answers,
        [[0.0] * len(answer) for answer in answers],
    )
    batch = padded_batch(rollouts, np.arange(len(tasks)), pad_token_id=pad_token_id(tokenizer))
    logprobs_BL, _, first = completion_logprobs(model, batch, rollouts.temperature, bf16=False)
    optimizer.zero_grad()
    loss = -token_mean(logprobs_BL, batch.loss_mask[:, first:].to(logprobs_BL.device))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _key(model: Any, tasks: TaskStream, config: WarmStartConfig, sampling: Sampling, seed: int) -> str:
    digest = hashlib.sha256()
    for name, weights in snapshot(model).items():
        digest.update(name.encode() + weights.numpy().tobytes())
    # Another arithmetic makes another model: it must not be taken for the one that these settings make today.
    arithmetic = [REVISION, torch.__version__, transformers.__version__, torch.get_num_threads(), str(model.device)]
    prompts = [[task.prompt, task.answer] for task in _fingerprint(tasks, config)]
    digest.update(json.dumps([arithmetic, prompts, asdict(config), asdict(sampling), seed]).encode())
    return digest.hexdigest()[:16]


def _fingerprint(tasks: TaskStream, config: WarmStartConfig) -> Iterator[Task]:
    yield from tasks.test[:CHECK_PROMPTS]
    yield from (tasks.train(i) for i in range(config.batch_size))
