"""`ostinato check`: what a recipe amounts to, before anything is loaded, fetched or rented."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ostinato.cli.check_facts import GIB, Facts, Memory, facts_of
from ostinato.cli.check_sources import check_task, downloads
from ostinato.cli.check_warnings import warnings_of
from ostinato.config.sections import AUTO
from ostinato.recipe import load_recipe


def run(arguments: Namespace) -> int:
    """Explain the recipe; returns the exit code. Raises `ConfigError` for one that would not run."""
    config = load_recipe(arguments.recipe, arguments.overrides)
    facts = facts_of(config, int(arguments.gpu_gib * GIB))
    task, warnings = check_task(config), warnings_of(facts)
    if arguments.json:
        print(json.dumps(as_json(facts, task, warnings), allow_nan=False))
        return 0
    print("\n".join(explained(str(arguments.recipe), facts, task, warnings)))
    return 0


def as_json(facts: Facts, task: str, warnings: list[str]) -> dict[str, Any]:
    """Plain values; bytes and counts as whole numbers."""
    config, model, memory = facts.config, facts.model, facts.memory
    return {
        "runtime": config.runtime,
        "generator": config.generator,
        "generators": config.loop.generators,
        "trainers": config.loop.trainers,
        "mu": config.loop.mu,
        "pace": asdict(facts.pace),
        "parameters": model.sizes.parameters if model and model.sizes else None,
        "model_origin": model.origin if model else None,
        "model_place": str(model.place) if model and model.place else None,
        "memory": None
        if memory is None
        else {
            "gpu_bytes": memory.gpu_bytes,
            "trainer": asdict(memory.trainer) | {"total": memory.trainer.total},
            "generator": asdict(memory.generator)
            | {"kv_room": memory.kv_room, "kv_needed": memory.kv_needed, "sequences": memory.sequences},
        },
        "task": task,
        "downloads": list(downloads(facts)),
        "warnings": warnings,
    }


def explained(recipe: str, facts: Facts, task: str, warnings: list[str]) -> Iterator[str]:
    """The lines for a person."""
    yield f"{recipe} is valid"
    yield ""
    yield from _model(facts)
    yield f"Task       {task}"
    yield from _loop(facts)
    if facts.memory:
        yield ""
        yield from _memory(facts, facts.memory)
    fetched = list(downloads(facts))
    yield ""
    yield "Downloads  nothing" if not fetched else "Downloads"
    yield from (f"  - {line}" for line in fetched)
    if warnings:
        yield "Mind"
        yield from (f"  - {line}" for line in warnings)


def _model(facts: Facts) -> Iterator[str]:
    if facts.model is None:
        yield "Model      the toy: a table in numpy"
        return
    sizes, name = facts.model.sizes, facts.config.model.path or "a Qwen3"
    parameters = f"{sizes.parameters:,} parameters, " if sizes else ""
    yield f"Model      {name}: {parameters}{facts.model.origin}"


def _loop(facts: Facts) -> Iterator[str]:
    config, pace = facts.config, facts.pace
    loop, engine = config.loop, config.generator if facts.model else "toy"
    yield (
        f"Split      {loop.generators} generators ({engine}), {loop.trainers} trainers, runtime"
        f" {config.runtime}, clock {loop.clock}; batches of {loop.batch_size}, groups of {loop.group_size}"
    )
    yield (
        f"Steps      {pace.train_steps:,} train steps, {pace.rollouts:,} rollouts, {pace.rollouts_per_step:.4g} a step;"
        f" {pace.train_steps * pace.gamma:.4g} compute units at mu = {loop.mu:g}"
    )
    begins = ", to begin with" if AUTO in (config.buffer.capacity, config.buffer.samples_per_insert) else ""
    yield f"Reuse      {pace.uses:.4g} uses a rollout; gamma = {pace.gamma:.3f} of a baseline's cost a step{begins}"
    if pace.horizon is not None:
        yield (
            f"Staleness  a rollout stays {pace.horizon:.4g} train steps (N = {pace.capacity}{begins});"
            f" at a draw it has been there for {pace.residence:.4g} on average"
        )


def _memory(facts: Facts, memory: Memory) -> Iterator[str]:
    trainer, generator, config = memory.trainer, memory.generator, facts.config
    part = " of its share" if config.optimizer.fsdp and config.runtime == "ray" else ""
    yield f"Trainer    about {_gib(trainer.total)}{part}, on one GPU of {_gib(memory.gpu_bytes)} (--gpu-gib)"
    yield (
        f"           weights {_gib(trainer.weights)}, gradients {_gib(trainer.gradients)}, optimizer"
        f" {_gib(trainer.optimizer)}, whole layers {_gib(trainer.whole_layers)}, activations of"
        f" {config.optimizer.tokens_per_microbatch:,} tokens {_gib(trainer.activations)}"
    )
    yield f"Generator  weights {_gib(generator.weights)}, keys and values {generator.kv_token / 1024:.4g} KiB a token"
    if memory.sequence_tokens:
        fit = memory.generator.completions(memory.kv_room, memory.sequence_tokens)
        yield (
            f"           {memory.sequences} sequences of {memory.sequence_tokens:,} tokens take"
            f" {_gib(memory.kv_needed or 0)}; {_gib(max(0, memory.kv_room))} are left for {fit}"
        )


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB"
