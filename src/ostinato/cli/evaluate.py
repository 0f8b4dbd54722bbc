"""`ostinato eval`."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

from ostinato.cli.backends import open_backend
from ostinato.errors import ConfigError
from ostinato.evaluation import held_out
from ostinato.loop.run_directory import newest_checkpoint, settings_of
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
    found = held_out(
        generator,
        backend.scorer,
        backend.tasks.test,
        replace(config.evaluation, greedy=True),
        max_new_tokens=config.sampling.max_new_tokens,
        seed=config.seed,
        point=0,
    )
    figures = {"checkpoint": str(checkpoint), **found.record()} | {
        "sampled_standard_error": found.sampled.standard_error,
        "completion_tokens": found.sampled.mean_length,
        "truncated_fraction": found.sampled.truncated_fraction,
    }
    print(json.dumps(figures) if arguments.json else "\n".join(_lines(figures)))
    return 0


def _lines(figures: dict[str, Any]) -> list[str]:
    examples = figures.pop("examples", [])
    return [
        *(_line(name, value) for name, value in figures.items()),
        *(f"{'right' if one['correct'] else 'wrong':<24}{one['prompt']!r}: {one['completion']!r}" for one in examples),
    ]


def _line(name: str, value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{key}: {number:.4f}" for key, number in value.items())
    return f"{name:<24}{f'{value:.4f}' if isinstance(value, float) else value}"
