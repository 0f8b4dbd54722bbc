"""The recipe's own model, tasks and engine at work for a moment: log-prob parity, and new weights in the generator."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.cli.doctor_finding import FAULT, OK, WARNING, Finding, size_shown
from ostinato.cli.doctor_parity import Parity, Tolerance, Transfer, cause_of, tolerance_of
from ostinato.config import LossConfig, RunConfig
from ostinato.config.governing import GovernorsConfig
from ostinato.errors import DataError
from ostinato.protocols import Backend, Draw, Generator, GroupRequest, Recomputer, Sampling, Trainer, Weights
from ostinato.rollouts import Rollouts, concatenate

GROUPS, LARGEST_GROUP, MOST_NEW_TOKENS = 4, 4, 256
"""Of the completions that are generated twice: prompts, completions a prompt, tokens a completion."""

LEARNING_RATE, MOST_STEPS = 3e-4, 100
"""Of the optimizer steps that move the policy, until old and new weights can be told apart."""

DOCTOR_STREAM = 31
"""Second entry of the seeds of these groups."""

CLEARLY = 5.0
"""The policy is moved this much beyond what would be a fault."""


TRANSFER_CHANGES = {
    OK: "",
    WARNING: "mend parity first where it is no OK; where the policy is certain of every token nothing can be told",
    FAULT: "generator.load must replace every weight and drop cached keys and values; do not train with this pair",
}


def probed(config: RunConfig, place: Path | None) -> RunConfig:
    """The recipe with a plain loss and without governors, so that its trainer moves the policy whatever it is for.

    `place`: where the model is on this machine, so that nobody asks the hub. A built model is left as it starts.
    """
    path = str(place) if place and config.model.path not in ("", "smollm2") else config.model.path
    return replace(
        config,
        model=replace(config.model, path=path),
        warm_start=replace(config.warm_start, target_accuracy=0.0),
        loss=LossConfig(clip_low=0.0),  # else a policy that has moved a little moves no further
        governors=GovernorsConfig(),
        optimizer=replace(config.optimizer, learning_rate=LEARNING_RATE, weight_decay=0.0, fsdp=False),
    )


def probe(config: RunConfig, backend: Backend) -> Iterator[Finding]:
    """Parity, then the transfer. Raises what model, engine and trainer raise."""
    generator, trainer = generator_of(config, backend), backend.trainer()
    try:
        yield from examine(config, trainer, generator, requests_of(config, backend))
    finally:
        close = getattr(generator, "close", None)
        if close is not None:
            close()


def generator_of(config: RunConfig, backend: Backend) -> Generator:
    """What generates in a run of this recipe; of a cluster's, one in this process."""
    apart = config.generator == "vllm" or (config.runtime == "local" and config.loop.clock == "wall")
    return backend.concurrent_generator() if apart else backend.generator()


def requests_of(config: RunConfig, backend: Backend) -> list[GroupRequest]:
    """A few groups of the recipe's first training prompts, under its sampling settings."""
    sampling = Sampling(
        config.sampling.temperature, max_new_tokens=min(config.sampling.max_new_tokens, MOST_NEW_TOKENS)
    )
    size = min(config.loop.group_size, LARGEST_GROUP)
    seeds = ((config.seed, DOCTOR_STREAM, i) for i in range(GROUPS))
    return [GroupRequest(backend.tasks.train(i), i, size, seed, sampling) for i, seed in enumerate(seeds)]


def examine(
    config: RunConfig, trainer: Trainer, generator: Generator, requests: Sequence[GroupRequest]
) -> Iterator[Finding]:
    """The findings about this pair. Raises `DataError` for a trainer that cannot recompute log-probs."""
    if not isinstance(trainer, Recomputer):
        raise DataError(f"{type(trainer).__name__} has no `logprobs`: its parity with a generator cannot be checked")
    tolerance = tolerance_of(rounded=_rounds(config))
    generator.load(trainer.weights(), 0)
    start = time.perf_counter()
    rollouts = concatenate(list(generator.stream(requests)))
    generate_s = time.perf_counter() - start
    parity = parity_of(trainer, rollouts)
    level, change = parity.level(tolerance), ""
    if level != OK:
        raw = parity_of(trainer, rollouts.replace(temperature=np.ones_like(rollouts.temperature)))
        change = cause_of(parity, raw, config.sampling.temperature, tolerance)
    figures = {**parity.figures(), "precision": tolerance.precision, "generate_s": generate_s}
    yield Finding(level, "parity", parity.shown(tolerance), change, figures)
    moved, steps = _move(trainer, rollouts, tolerance)
    yield _transfer(trainer, generator, requests, Moved(parity, moved, steps), tolerance)


@dataclass(frozen=True, slots=True)
class Moved:
    """Parity of the first rollouts with the policy that made them (`before`) and with the one after `steps` steps."""

    before: Parity
    after: Parity
    steps: int


def parity_of(trainer: Recomputer, rollouts: Rollouts) -> Parity:
    """The rollouts' own log-probs against the trainer's."""
    return Parity.of(rollouts.behavior_logprobs[rollouts.loss_mask], trainer.logprobs(draw_of(rollouts)))


def draw_of(rollouts: Rollouts) -> Draw:
    """All of these rollouts, drawn for the first time."""
    zeros = np.zeros(len(rollouts), np.int64)
    return Draw(rollouts, np.arange(len(rollouts)), np.ones(len(rollouts)), zeros, zeros, zeros, zeros - 1)


def _move(trainer: Any, rollouts: Rollouts, tolerance: Tolerance) -> tuple[Parity, int]:
    """Train these rollouts away until the trainer's log-probs of them have clearly moved."""
    unwanted = draw_of(rollouts.replace(advantage=np.full(len(rollouts), -1.0)))
    steps, moved = 0, parity_of(trainer, rollouts)
    while steps < MOST_STEPS and moved.judged(tolerance) < CLEARLY * tolerance.fault:
        trainer.step(unwanted)
        steps, moved = steps + 1, parity_of(trainer, rollouts)
    return moved, steps


def _transfer(
    trainer: Any, generator: Generator, requests: Sequence[GroupRequest], moved: Moved, tolerance: Tolerance
) -> Finding:
    version = moved.steps + 1
    start = time.perf_counter()
    weights = trainer.weights()
    middle = time.perf_counter()
    generator.load(weights, version)
    end = time.perf_counter()
    # The same requests: a generator that kept the old weights would say the same again.
    rollouts = concatenate(list(generator.stream(requests)))
    versions = np.union1d(rollouts.policy_version_min, rollouts.policy_version_max).tolist()
    after, size = parity_of(trainer, rollouts), size_bytes(weights)
    level, text = Transfer(moved.after, after, tuple(versions), version).verdict(moved.before, tolerance)
    text += (
        f"; {size_shown(size)}: {middle - start:.2g} s out of the trainer, {end - middle:.2g} s into the generator;"
        f" log-probs {after.max_abs:.2g} apart at most, {moved.steps} steps had moved them {moved.after.max_abs:.2g}"
    )
    figures = {
        "version": version,
        "versions": versions,
        "steps": moved.steps,
        "weights_bytes": size,
        "snapshot_s": middle - start,
        "load_s": end - middle,
        "moved": moved.after.figures(),
        "after": after.figures(),
    }
    return Finding(level, "weights", text, TRANSFER_CHANGES[level], figures)


def size_bytes(weights: Weights) -> int:
    """Of all arrays or tensors of a snapshot."""
    return sum(math.prod(value.shape) * value.dtype.itemsize for value in weights.values())


def _rounds(config: RunConfig) -> bool:
    engine = config.vllm.dtype if config.generator == "vllm" else None
    return config.model.backend == "hf" and (config.model.bf16 or engine in ("bfloat16", "float16"))
