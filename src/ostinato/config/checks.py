"""Settings that contradict each other, or would let a run stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.config.bounds import kept_newest, request_size, shard_count
from ostinato.config.engines import generator_checks
from ostinato.config.placement import placement_checks
from ostinato.config.sections import PRIORITIZED
from ostinato.config.traffic import Checks, capacity_to_check, control_checks, traffic_checks
from ostinato.config.training import training_checks
from ostinato.errors import ConfigError
from ostinato.rollouts import TOKEN_COLUMNS

if TYPE_CHECKING:
    from ostinato.config.run import RunConfig


TOKEN_BYTES = sum(np.dtype(TOKEN_COLUMNS[name]).itemsize for name in ("tokens", "behavior_logprobs"))


def check_combinations(config: RunConfig) -> None:
    """Refuse settings that contradict each other or would deadlock."""
    for bad, message in (
        *control_checks(config),
        *_sizes(config),
        *generator_checks(config),
        *traffic_checks(config),
        *_priorities(config),
        *_staleness(config),
        *_governors(config),
        *placement_checks(config),
        *training_checks(config),
        *_rest(config),
    ):
        if bad:
            raise ConfigError(message)


def _sizes(config: RunConfig) -> Checks:
    loop, buffer = config.loop, config.buffer
    n = capacity_to_check(config)
    b, g, t = loop.batch_size, loop.group_size, loop.trainers
    queue, request, shards = buffer.kind == "queue", request_size(loop), shard_count(loop)
    newest = kept_newest(n, buffer.positive_bias, shards)
    return [
        (b > n, f"loop.batch_size {b} > buffer.capacity {n}: a batch never fits in the buffer"),
        (g > b, f"loop.group_size {g} > loop.batch_size {b}: a group never fits in a batch"),
        (request > n, f"groups_per_request * group_size {request} > buffer.capacity {n}: a request never fits"),
        (buffer.min_size > n, f"buffer.min_size {buffer.min_size} > buffer.capacity {n}: it is never reached"),
        (
            not queue and newest < b,
            f"buffer.positive_bias {buffer.positive_bias} keeps fewer of the newest of {n} than loop.batch_size {b}: "
            "without enough correct ones no batch would ever be there",
        ),
        (
            not queue and newest < buffer.min_size,
            f"buffer.positive_bias {buffer.positive_bias} keeps fewer of the newest of {n} than buffer.min_size "
            f"{buffer.min_size}: without enough correct ones it would never be reached",
        ),
        (loop.shards and queue, "loop.shards needs buffer.kind = replay: the queue is one"),
        (
            loop.shards and bool(b % t or n % t),
            f"loop.shards: trainers {t} must divide batch_size {b} and buffer.capacity {buffer.capacity}",
        ),
        (
            queue and n < b + request - 1,
            f"buffer.capacity {n} < batch_size + request - 1 = {b + request - 1}: the queue could fill below a batch",
        ),
    ]


def _priorities(config: RunConfig) -> Checks:
    loop, buffer = config.loop, config.buffer
    names = ("priority", "priority_exponent", "beta", "normalize", "freshness_tau")
    given = [name for name in names if getattr(buffer, name) is not None]
    scheme = buffer.sampler == "advantage_prioritized"
    fixed = [name for name in given if name != "priority_exponent"] if scheme else []
    weighted = buffer.beta or (buffer.sampler == "per" and buffer.beta is None)
    # Tokens and log-probs, of completions as long as they may get: prompts and rows of scalars come on top.
    least = loop.batch_size * config.sampling.max_new_tokens * TOKEN_BYTES
    return [
        (
            bool(given) and buffer.sampler not in PRIORITIZED,
            f"buffer.{given[0] if given else ''} is for a prioritized sampler, got buffer.sampler = {buffer.sampler}",
        ),
        (
            bool(fixed),
            f"buffer.{fixed[0] if fixed else ''}: buffer.sampler = advantage_prioritized has its own, which is fixed",
        ),
        (
            buffer.normalize is not None and not weighted,
            f"buffer.normalize {buffer.normalize} needs buffer.beta above 0: there are no weights",
        ),
        (
            buffer.kind == "replay" and buffer.capacity_bytes is not None and least > buffer.capacity_bytes,
            f"buffer.capacity_bytes {buffer.capacity_bytes} < {least}: the tokens of a batch of {loop.batch_size} "
            f"completions of {config.sampling.max_new_tokens} never fit",
        ),
    ]


def _governors(config: RunConfig) -> Checks:
    rules = config.governors
    return [
        (
            rules.ess_bound is not None and rules.ess_bound > 1 - rules.ess_hysteresis,
            f"governors.ess_bound {rules.ess_bound} plus ess_hysteresis {rules.ess_hysteresis} is above 1: a closed "
            "age would never open",
        ),
        (
            rules.min_samples > rules.window,
            f"governors.min_samples {rules.min_samples} > governors.window {rules.window}: no age is ever judged",
        ),
    ]


def _staleness(config: RunConfig) -> Checks:
    loop = config.loop
    if loop.max_staleness is None:
        return []
    b, queue, request = loop.batch_size, config.buffer.kind == "queue", loop.group_size * loop.groups_per_request
    slack = loop.max_staleness - (loop.publish_every - 1)
    return [
        (
            slack < 0,
            f"loop.max_staleness {loop.max_staleness} < publish_every - 1 = {loop.publish_every - 1}: nobody could go",
        ),
        (
            queue and slack == 0 and b % request != 0,
            f"loop.max_staleness {loop.max_staleness} leaves no slack: batch_size {b} must be a multiple of "
            f"group_size * groups_per_request = {request}",
        ),
        (queue and request > b, f"group_size * groups_per_request {request} > batch_size {b}: nobody could start"),
        (queue and loop.epochs > 1, "loop.epochs > 1 together with loop.max_staleness is not defined"),
    ]


def _rest(config: RunConfig) -> Checks:
    loop, model, task = config.loop, config.model, config.task
    return [
        (
            loop.clock == "turns" and loop.generators > 1,
            f"loop.clock = turns has one engine, which works or rests: set loop.generators = 1, got {loop.generators}; "
            "loop.groups_per_request says how much it generates at once",
        ),
        (
            loop.epochs > 1 and config.buffer.kind != "queue",
            f"loop.epochs = {loop.epochs} belongs to buffer.kind = queue; a replay buffer repeats by itself",
        ),
        (
            loop.compute_units == 0 and loop.train_steps == 0,
            "set loop.compute_units or loop.train_steps: the run would not end",
        ),
        (model.heads % model.kv_heads != 0, f"model.kv_heads {model.kv_heads} must divide model.heads {model.heads}"),
        (
            model.hidden_size % model.heads != 0,
            f"model.heads {model.heads} must divide model.hidden_size {model.hidden_size}",
        ),
        ((model.backend == "toy") != (task.name == "toy"), "model.backend = toy and task.name = toy go together"),
        (task.name == "jsonl" and not task.file, "task.name = jsonl needs task.file"),
        (task.name == "toy" and bool(task.options), "task.options: the toy takes none, its sizes stand under toy"),
        (
            task.name == "toy" and (bool(task.scorer) or task.score_workers is not None),
            f"task.scorer {task.scorer!r}, task.score_workers {task.score_workers}: the toy, which has no text, scores "
            "itself; leave them out, or take another task",
        ),
        (
            0 < config.evaluation.every_units < 1e-3,
            f"evaluation.every_units must be 0 (never) or at least 0.001, got {config.evaluation.every_units}",
        ),
        (
            not all(isinstance(arm, dict) for arm in config.arms.values()),
            f"arms: each must be a table of settings, got {config.arms}",
        ),
    ]
