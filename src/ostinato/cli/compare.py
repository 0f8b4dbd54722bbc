"""`ostinato compare`: arms side by side over seeds, cached and resumable."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.cli.backends import environment, open_backend, open_backend_aloud
from ostinato.cli.interrupt import graceful_interrupt
from ostinato.config import RunConfig, config_to_dict
from ostinato.errors import ConfigError, OstinatoError, RunError
from ostinato.loop.session import Session
from ostinato.recipe import config_from_dict, merge, recipe_tree
from ostinato.report import write_report
from ostinato.stats.comparison import ArmRun, summarize
from ostinato.stats.curves import WINDOW
from ostinato.telemetry import read_jsonl, write_json

SHOW_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """One arm under one seed."""

    arm: str
    seed: int
    config: RunConfig
    directory: Path

    @property
    def is_finished(self) -> bool:
        """Whether a run with these very settings stands complete in the directory."""
        path = self.directory / "run.json"
        if not (self.directory / "finished.json").exists() or not path.exists():
            return False
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["settings"]
        return bool(kept == json.loads(json.dumps(config_to_dict(self.config))))


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
    tree = dict(tree)
    own = tree.pop("arms", {})
    standard = standard_arms(config_from_dict(tree, where))
    jobs = []
    for seed in seeds:
        for arm in arms:
            if arm not in standard and arm not in own:
                raise ConfigError(f"unknown arm {arm!r}, expected one of {sorted({*standard, *own})}")
            settings = json.loads(json.dumps(tree))
            merge(merge(settings, standard.get(arm, {})), own.get(arm, {}))
            config = config_from_dict(settings | {"seed": seed}, f"{where}, arm {arm}")
            jobs.append(Job(arm, seed, config, directory / f"{arm}-seed{seed}"))
    return jobs


def refuse_short_runs(jobs: Sequence[Job]) -> None:
    """Raise `ConfigError` before anything runs when a curve would be shorter than the smoothing window."""
    for job in jobs:
        units, every = job.config.loop.compute_units, job.config.evaluation.every_units
        if units == 0 or every == 0 or units / every < WINDOW:
            raise ConfigError(
                f"a comparison needs loop.compute_units of at least {WINDOW} times evaluation.every_units, "
                f"got {units:g} and {every:g} in arm {job.arm}"
            )


def standard_arms(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The recipe itself, the same without a buffer, and the sceptic's control: without one, each batch k = 3 times."""
    queue = {"kind": "queue", "capacity": 3 * config.loop.batch_size}
    return {"baseline": {"buffer": queue}, "replay": {}, "epochs": {"buffer": queue, "loop": {"epochs": 3}}}


def run_jobs(jobs: Sequence[Job], workers: int) -> bool:
    """Run all jobs, `workers` at a time, in processes of their own; False when interrupted.

    A run that fails is reported at once and does not stop the others; `RunError` then ends the call.
    """
    context = multiprocessing.get_context("spawn")
    running: dict[Future[bool], Job] = {}
    queue, failed, shown = list(jobs), 0, time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=context) as pool, graceful_interrupt() as stop:
        while (queue and not stop()) or running:
            while queue and len(running) < workers and not stop():
                job = queue.pop(0)
                running[pool.submit(run_job, job)] = job
            for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                failed += not report_end(running.pop(future), future)
            if time.monotonic() - shown > SHOW_EVERY_S and running:
                shown = time.monotonic()
                states = "  |  ".join(f"{job.directory.name}: {last_line(job)}" for job in running.values())
                print(f"{len(jobs) - len(queue) - len(running)}/{len(jobs)} done  {states}", flush=True)
        interrupted = stop()
    if failed:
        raise RunError(f"{failed} of {len(jobs)} runs failed; finished runs are kept, the same command does the rest")
    return not interrupted


def report_end(job: Job, future: Future[bool]) -> bool:
    """Say how a run ended; False when it failed."""
    try:
        finished = future.result()
    except BrokenExecutor:
        raise RunError(f"the process of {job.directory} was killed; out of memory? try --jobs 1") from None
    except (OstinatoError, OSError, MemoryError) as error:
        print(f"failed  {job.directory.name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return False
    print(f"{'done' if finished else 'stopped'}  {job.directory.name}: {last_line(job)}", flush=True)
    return True


def run_job(job: Job) -> bool:
    """One run, in a process of its own; True when it finished."""
    with graceful_interrupt(quiet=True) as stop:
        backend = open_backend(job.config)
        return Session(job.config, backend, job.directory, resume=True, about=environment(backend)).run(stop)


def last_line(job: Job) -> str:
    """How far a run is."""
    path = job.directory / "metrics.jsonl"
    evaluations = [r for r in read_jsonl(path) if r["event"] == "evaluation"] if path.exists() else []
    if not evaluations:
        return "starting"
    last = evaluations[-1]
    return f"compute {last['compute']:.0f}, accuracy {last['sampled_accuracy']:.3f}"


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
    print(f"{'arm':<12}" + "".join(f"{name:>25}" for name in columns) + "   saving by seed")
    for arm, figures in summary["arms"].items():
        row = "".join(f"{_figure(figures['median'][name], name):>25}" for name in columns)
        seeds = ", ".join(f"{seed}: {_figure(of['saving'], 'saving')}" for seed, of in figures["seeds"].items())
        print(f"{arm:<12}{row}   {seeds}")
    print()


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    return f"{value:+.0%}" if "saving" in name else f"{value:.3f}"
