"""Which loss for which staleness: every loss at every staleness, at the best rate of a grid. README.md has the rules.

python recipes/staleness/study.py [toy] [sort] [--jobs N] [--quick] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noisy_toy import NoisyToyBackend
from results import choose_rates, draw_curves, measured, renew_tables, summary

from ostinato.cli.backends import environment, open_backend, open_backend_aloud
from ostinato.cli.jobs import Job
from ostinato.loop.session import Session
from ostinato.recipe import config_from_dict, merge, recipe_tree
from ostinato.telemetry import write_json

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"

STALENESS = (0, 4, 16, 64)
LOSSES: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"name": "grpo"},
    "gspo": {"name": "gspo"},
    "m2po": {"name": "m2po"},
    "vespo": {"name": "vespo"},
    "cispo_scalerl": {"name": "cispo_scalerl"},
    "truncated_importance": {"name": "truncated_importance", "options": {"level": "sequence", "high": 2.0}},
    "topr": {"name": "topr"},
    "reinforce": {"name": "reinforce"},
    "asymre": {"name": "asymre"},
    "asymre_low": {"name": "asymre", "shift": -0.3},
}
"""Settings of the recipe's section `loss`; those that are not given are the loss's own. A queue of single use draws
uniformly: no importance weights of a draw enter."""


@dataclass(frozen=True, slots=True)
class Study:
    """Rates to try on `tuning_seeds`, and the seeds on which the best rate of each loss and staleness is reported."""

    name: str
    rate_setting: tuple[str, str]
    rates: tuple[float, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    losses: tuple[str, ...] = tuple(LOSSES)
    staleness: tuple[int, ...] = STALENESS
    train_steps: int = 0

    def job(self, loss: str, staleness: int, rate: float, seed: int, directory: Path) -> Job:
        """One run. Staleness s needs room for s + 1 batches, and for the request that is being delivered."""
        recipe = HERE / f"{self.name}.toml"
        tree = recipe_tree(recipe)
        section, key = self.rate_setting
        loop, batch = tree["loop"], tree["loop"]["batch_size"]
        own: dict[str, Any] = {
            "seed": seed,
            "loss": LOSSES[loss],
            "loop": {"max_staleness": staleness, "train_steps": self.train_steps or loop["train_steps"]},
            "buffer": {"capacity": (staleness + 2) * batch},
            section: {key: rate},
        }
        name = f"{loss}-staleness{staleness}-rate{rate:g}-seed{seed}"
        return Job(loss, seed, config_from_dict(merge(tree, own), f"{recipe}, {name}"), directory / self.name / name)

    def jobs(self, rates: Mapping[tuple[str, int], Sequence[float]], seeds: Sequence[int], out: Path) -> Iterator[Job]:
        """All runs at the given rates of each loss and staleness."""
        for (loss, staleness), several in rates.items():
            for rate in several:
                for seed in seeds:
                    yield self.job(loss, staleness, rate, seed, out)

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Every loss at every staleness."""
        return [(loss, staleness) for loss in self.losses for staleness in self.staleness]


STUDIES = {
    "toy": Study("toy", ("toy", "learning_rate"), (2.0, 8.0, 32.0, 128.0, 512.0), (100, 101), (0, 1, 2, 3, 4)),
    "sort": Study("sort", ("optimizer", "learning_rate"), (2e-5, 5e-5, 1.25e-4), (100,), (0, 1, 2, 3)),
}


def perform(job: Job) -> str:
    """Run a job that is not finished. Of its checkpoints nothing is kept: numbers are all a study wants."""
    start = time.perf_counter()
    toy = job.config.model.backend == "toy"
    backend = NoisyToyBackend(job.config) if toy else open_backend(job.config)
    Session(job.config, backend, job.directory, resume=True, about=environment(backend)).run()
    shutil.rmtree(job.directory / "checkpoints", ignore_errors=True)
    return f"{job.directory.name}: {job.progress()}, {time.perf_counter() - start:.0f} s"


def perform_all(jobs: Sequence[Job], workers: int) -> None:
    """Run what is missing, in this process or in several."""
    missing = [job for job in jobs if not job.is_finished]
    print(f"{len(jobs)} runs, {len(jobs) - len(missing)} of them finished before", flush=True)
    if missing and workers > 1:
        open_backend_aloud(missing[0].config)  # a warm start is made once, not by every process
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            for line in pool.map(perform, missing):
                print(line, flush=True)
    else:
        for number, job in enumerate(missing, 1):
            print(f"{number}/{len(missing)} {perform(job)}", flush=True)


def conduct(study: Study, out: Path, workers: int) -> dict[str, Any]:
    """Choose rates on their seeds, run the others, return the numbers of both."""
    grid = dict.fromkeys(study.cells, study.rates)
    perform_all(list(study.jobs(grid, study.tuning_seeds, out)), workers)
    tuning = {
        (*cell, rate): [measured(study.job(*cell, rate, seed, out), cell[1]) for seed in study.tuning_seeds]
        for cell in study.cells
        for rate in study.rates
    }
    best = choose_rates(tuning)
    perform_all(list(study.jobs({cell: (rate,) for cell, rate in best.items()}, study.seeds, out)), workers)
    runs = {
        cell: {seed: measured(study.job(*cell, rate, seed, out), cell[1]) for seed in study.seeds}
        for cell, rate in best.items()
    }
    any_run = study.job(*study.cells[0], best[study.cells[0]], study.seeds[0], out)
    about = json.loads((any_run.directory / "run.json").read_text(encoding="utf-8"))
    return summary(tuning, best, runs) | {name: about[name] for name in ("policy", "versions")}


def main(words: Sequence[str] | None = None) -> None:
    """Run the studies named, or both; write numbers, figures and tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("studies", nargs="*", default=list(STUDIES), help="toy, sort; both when none is named")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    parser.add_argument("--out", type=Path, default=Path("runs/staleness"), help="where runs and numbers are kept")
    parser.add_argument("--quick", action="store_true", help="two losses, few steps; the figure goes to --out")
    arguments = parser.parse_args(words)
    for name in arguments.studies:
        study, out = STUDIES[name], arguments.out
        if arguments.quick:
            losses, rates, out = study.losses[:2], study.rates[:2], out / "quick"
            study = replace(study, losses=losses, rates=rates, staleness=(0, 4), train_steps=40)
        numbers = conduct(study, out, arguments.jobs)
        write_json(out / f"{name}.json", numbers)
        draw_curves(numbers, (out if arguments.quick else DOCS / "figures") / f"staleness_{name}.png")
        renew_tables(numbers, name, None if arguments.quick else DOCS / "choosing-a-loss.md")


if __name__ == "__main__":
    main()
