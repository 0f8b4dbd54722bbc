"""`ostinato compare`: arms side by side over seeds, cached and resumable."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ostinato.cli.backends import open_backend_aloud
from ostinato.cli.jobs import Job, run_jobs
from ostinato.config import RunConfig, config_to_dict
from ostinato.errors import ConfigError
from ostinato.recipe import config_from_dict, merge, recipe_tree
from ostinato.report import write_report
from ostinato.stats.comparison import ArmRun, summarize
from ostinato.stats.curves import WINDOW
from ostinato.telemetry import read_jsonl, write_json


def run(arguments: Namespace) -> int:
    """Run what is missing, summarize everything; returns the exit code."""
    directory: Path = arguments.out or Path("runs") / f"{arguments.recipe.stem}-compare"
    jobs = plan_jobs(
        recipe_tree(arguments.recipe, arguments.overrides),
        arms=arguments.arms.split(","),
        seeds=range(arguments.first_seed, arguments.first_seed + arguments.seeds),
        directory=directory,
        where=str(arguments.recipe),
    )
    refuse_short_runs(jobs)
    if (directory / "run.json").exists():
        raise ConfigError(f"{directory} holds a single run; choose another --out for a comparison")
    missing = [job for job in jobs if not job.is_finished]
    print(f"{len(jobs)} runs in {directory}, {len(jobs) - len(missing)} of them finished before", flush=True)
    if missing:
        open_backend_aloud(missing[0].config)  # warm start once, before the runs share its cache
        workers = arguments.jobs or max(1, (os.cpu_count() or 1) // missing[0].config.threads)
        if not run_jobs(missing, workers):
            print(f"stopped; finished work is kept, the same command goes on: {directory}", file=sys.stderr)
            return 130
    summary = summarize([arm_run(job) for job in jobs])
    write_json(directory / "summary.json", summary)
    print_summary(summary)
    print(f"report: {write_report(directory)}\nsummary: {directory / 'summary.json'}")
    return 0


def plan_jobs(
    tree: dict[str, Any], *, arms: Sequence[str], seeds: Sequence[int], directory: Path, where: str
) -> list[Job]:
    """Every arm under every seed; an arm is the recipe with the arm's own settings laid over it."""
    own = config_from_dict(tree, where).arms
    standard = standard_arms(config_from_dict(tree, where))
    if len({*arms}) < len(arms) or "baseline" not in arms:
        raise ConfigError(f"--arms expects different arms, baseline among them, got {', '.join(arms)}")
    jobs = []
    for seed in seeds:
        for arm in arms:
            if arm not in standard and arm not in own:
                raise ConfigError(f"unknown arm {arm!r}, expected one of {sorted({*standard, *own})}")
            settings = json.loads(json.dumps(tree | {"arms": {}}))
            merge(merge(settings, standard.get(arm, {})), own.get(arm, {}))
            config = config_from_dict(settings | {"seed": seed}, f"{where}, arm {arm}")
            jobs.append(Job(arm, seed, config, directory / f"{arm}-seed{seed}"))
    return jobs


def refuse_short_runs(jobs: Sequence[Job]) -> None:
    """Raise `ConfigError` before anything runs when arms would not end together, or curves be too short to smooth."""
    for job in jobs:
        loop, every = job.config.loop, job.config.evaluation.every_units
        if loop.train_steps:
            raise ConfigError(f"arms end at the same loop.compute_units: set loop.train_steps = 0 in arm {job.arm}")
        if every == 0 or loop.compute_units / every < WINDOW:
            raise ConfigError(
                f"a comparison needs loop.compute_units of at least {WINDOW} times evaluation.every_units, "
                f"got {loop.compute_units:g} and {every:g} in arm {job.arm}"
            )


def standard_arms(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The recipe itself, the same without a buffer, and the sceptic's control: without one, each batch k = 3 times."""
    replaying = {"samples_per_insert": None, "error_buffer": None, "journal": False}  # what a queue does not have
    queue = {"kind": "queue", "capacity": 3 * config.loop.batch_size, **replaying}
    return {
        "baseline": {"buffer": queue, "loop": {"shards": False}},
        "replay": {},
        "epochs": {"buffer": queue, "loop": {"shards": False, "epochs": 3}},
    }


def arm_run(job: Job) -> ArmRun:
    """A finished run as the summary wants it."""
    records = read_jsonl(job.directory / "metrics.jsonl")
    return ArmRun(
        arm=job.arm,
        seed=job.seed,
        settings=config_to_dict(job.config),
        batch_size=job.config.loop.batch_size,
        mu=job.config.loop.mu,
        evaluations=[record for record in records if record["event"] == "evaluation"],
    )


def print_summary(summary: Mapping[str, Any]) -> None:
    """The figures a person wants first: medians over seeds, and the saving of each seed."""
    rule = summary["rule"]
    print(
        f"\nsaving = 1 - compute(arm) / compute({rule['baseline']}) to {rule['target_fraction']:.0%} of the baseline's "
        f"final sampled accuracy (curves: mean of {rule['window']} evaluations)\n"
    )
    columns = ("saving", "saving_at_measured_mu", "saving_wall_time", "final_sampled_accuracy", "final_greedy_accuracy")
    print(f"{'arm':<12}" + "".join(f"{name:>24}" for name in columns) + "   saving by seed")
    for arm, figures in summary["arms"].items():
        row = "".join(f"{_figure(figures['median'][name], name):>24}" for name in columns)
        seeds = ", ".join(
            f"{seed}: {_figure(of['saving'], 'saving') if of['reached'] else 'not reached'}"
            for seed, of in figures["seeds"].items()
        )
        print(f"{arm:<12}{row}   {seeds}")
    print("\nmedians over seeds; a seed that did not reach the target counts as no saving\n")


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    return f"{value:+.0%}" if "saving" in name else f"{value:.3f}"
