"""`ostinato eval`."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from ostinato.cli.backends import open_backend
from ostinato.errors import ConfigError
from ostinato.evaluation import evaluate
from ostinato.loop.run_directory import newest_checkpoint, settings_of
from ostinato.loop.session import EVALUATION_STREAM, powers_of_two
from ostinato.protocols import Sampling
from ostinato.recipe import apply_overrides, config_from_dict


def run(arguments: Namespace) -> int:
    """Evaluate the newest checkpoint of a run on held-out prompts; returns the exit code."""
    path = arguments.run_directory / "run.json"
    if not path.exists():
        raise ConfigError(f"{arguments.run_directory} is not a run directory: it has no run.json")
    config = config_from_dict(
        apply_overrides(settings_of(arguments.run_directory), arguments.overrides), where=str(path)
    )
    backend = open_backend(config)
    checkpoint = newest_checkpoint(arguments.run_directory)
    trainer, generator = backend.trainer(), backend.generator()
    trainer.load(checkpoint / "trainer")
    generator.load(trainer.weights(), 0)
    chosen, length = config.evaluation, config.sampling.max_new_tokens
    tasks, scorer, seed = backend.tasks.test, backend.scorer, (config.seed, EVALUATION_STREAM, 0)
    sampled = Sampling(chosen.temperature, chosen.top_p, 0, length)
    result = evaluate(generator, scorer, tasks, sampling=sampled, samples=chosen.samples, seed=seed)
    greedy = evaluate(generator, scorer, tasks, sampling=Sampling(0.0, 1.0, 0, length), samples=1, seed=seed)
    figures: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "prompts": len(tasks),
        "samples": chosen.samples,
        "sampled_accuracy": result.accuracy,
        "sampled_standard_error": result.standard_error,
        "greedy_accuracy": greedy.accuracy,
        "pass_at_k": {k: result.pass_at(k) for k in powers_of_two(chosen.samples)},
        "completion_tokens": result.mean_length,
        "truncated_fraction": result.truncated_fraction,
    }
    print(json.dumps(figures) if arguments.json else "\n".join(_line(name, value) for name, value in figures.items()))
    return 0


def _line(name: str, value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{key}: {number:.4f}" for key, number in value.items())
    return f"{name:<24}{f'{value:.4f}' if isinstance(value, float) else value}"
