"""A quick measurement of a recipe's model and task on this machine: seconds a generated and a trained token."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato.advantages import score_group
from ostinato.buffer import paper_fifo
from ostinato.cli.plan_facts import Facts, Known
from ostinato.config import RunConfig, config_to_dict
from ostinato.errors import DataError
from ostinato.protocols import Backend, GroupRequest, Sampling
from ostinato.rollouts import Rollouts, concatenate
from ostinato.theory.variance import Floats

ROUNDS = 5
"""Rounds that count; one more goes before them, in which caches and compilers warm up."""

MEASURE_STREAM = 21
"""Second entry of the seeds of these groups."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One round: seconds and tokens of generating, rewarding and training, and how many rollouts."""

    generate_s: float
    score_s: float
    train_s: float
    generated_tokens: int
    trained_tokens: int
    generated: int
    trained: int


def measure(config: RunConfig, backend: Backend, *, rounds: int = ROUNDS) -> Facts:
    """Generate a batch and take an optimizer step on it, `rounds` times; medians. Weights move in memory only.

    Raises `DataError` when a clock did not move.
    """
    timings = _rounds(config, backend, rounds + 1)[1:]
    generate = np.array([t.generate_s / t.generated for t in timings])
    train = np.array([t.train_s / t.trained for t in timings])
    if not (generate.min() > 0 and train.min() > 0):
        raise DataError("generating or training took no measurable time; give --mu")
    ratios = generate / train
    mu = Known(
        float(np.median(generate) / np.median(train)), f"{rounds} rounds", float(ratios.min()), float(ratios.max())
    )
    measured = {
        "rounds": rounds,
        "generate_s_per_token": _spread([t.generate_s / max(t.generated_tokens, 1) for t in timings]),
        "train_s_per_token": _spread([t.train_s / max(t.trained_tokens, 1) for t in timings]),
        "generate_s_per_rollout": _spread(generate),
        "train_s_per_rollout": _spread(train),
        "score_s_per_rollout": _spread([t.score_s / t.generated for t in timings]),
    }
    note = (
        "mu was measured with one generator and one trainer on this machine, one after the other; on other hardware, "
        "with longer completions or larger requests it is another"
    )
    return Facts(mu=mu, settings=config_to_dict(config), measured=measured, notes=[note])


def _rounds(config: RunConfig, backend: Backend, rounds: int) -> list[Timing]:
    loop = config.loop
    trainer = backend.trainer()
    # What evaluates need not be what generates.
    generator = backend.concurrent_generator() if config.generator == "vllm" else backend.generator()
    rng = np.random.default_rng([config.seed, MEASURE_STREAM])
    each = loop.groups_per_request
    requests = max(-(-loop.batch_size // (each * loop.group_size)), 1)
    timings, group = [], 0
    for step in range(rounds):
        generator.load(trainer.weights(), step)
        parts: list[Rollouts] = []
        generate_s = score_s = 0.0
        for _ in range(requests):
            wanted = [_request(config, backend, group + i, step) for i in range(each)]
            group += each
            start = time.perf_counter()
            finished = list(generator.stream(wanted))
            middle = time.perf_counter()
            parts += [
                score_group(f, backend.scorer.score(f, [w.task] * len(f)))
                for f, w in zip(finished, wanted, strict=True)
            ]
            generate_s, score_s = generate_s + middle - start, score_s + time.perf_counter() - middle
        rollouts = concatenate(parts)
        buffer = paper_fifo(len(rollouts), replacement=False)
        buffer.add(rollouts, train_step=step)
        draw = buffer.sample(loop.batch_size, train_step=step, rng=rng)
        start = time.perf_counter()
        trainer.step(draw)
        train_s = time.perf_counter() - start
        tokens = int(rollouts.completion_lengths.sum()), int(draw.rollouts.lengths.sum())
        timings.append(Timing(generate_s, score_s, train_s, *tokens, len(rollouts), len(draw)))
    return timings


def _request(config: RunConfig, backend: Backend, group: int, step: int) -> GroupRequest:
    sampling = Sampling(config.sampling.temperature, max_new_tokens=config.sampling.max_new_tokens)
    task = backend.tasks.train(group)
    return GroupRequest(task, group, config.loop.group_size, (config.seed, MEASURE_STREAM, group), sampling, step)


def _spread(values: Sequence[float] | Floats) -> Mapping[str, Any]:
    return {"median": float(np.median(values)), "low": float(np.min(values)), "high": float(np.max(values))}
