"""Wall time to plain TRL's final accuracy: `ReplayGRPOTrainer` beside `GRPOTrainer` and its `num_iterations`.

    python benchmarks/trl_replay.py [--seeds 0 1 2 3 4] [--uses 3] [--capacity 720] [--threads 2] [--json FILE]

Sorting ten digits, the policy and settings of recipes/demo.toml. Evaluations are not timed. Reports and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import transformers
import trl
from contestants import run_trl

from ostinato.backends.hf.models import snapshot
from ostinato.cli.backends import open_backend
from ostinato.config import RunConfig
from ostinato.evaluation import evaluate
from ostinato.integrations.trl import ReplayConfig, ReplayGRPOTrainer
from ostinato.protocols import Backend, Generator, Sampling
from ostinato.recipe import config_from_dict, merge, recipe_tree
from ostinato.stats.curves import compute_to_target, smoothed

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"
PLAIN, REPLAY, ITERATIONS = "GRPOTrainer", "ReplayGRPOTrainer", "num_iterations"
GENERATION = {"cache_implementation": "static"}  # the fastest of TRL's generation paths here, see trl_throughput.py
EVALUATION_STREAM = 3


class Accuracy(transformers.TrainerCallback):
    """Sampled accuracy on the held-out prompts every `every` steps, beside the seconds trained until then."""

    def __init__(self, backend: Backend, config: RunConfig, every: int) -> None:
        self._backend, self._config, self._every = backend, config, every
        self._engine: Generator = backend.generator()
        self._paused_s, self._began = 0.0, 0.0
        self.seconds: list[float] = []
        self.accuracy: list[float] = []

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        """The clock starts when the trainer has been set up."""
        self._began = time.perf_counter()
        self._measure(0, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure when it is time."""
        if state.global_step % self._every == 0:
            self._measure(state.global_step, kwargs["model"])

    def _measure(self, step: int, model: Any) -> None:
        start = time.perf_counter()
        self.seconds.append(start - self._began - self._paused_s)
        self._engine.load(snapshot(model), step)
        tasks, scorer = self._backend.tasks.test, self._backend.scorer
        sampling = Sampling(max_new_tokens=self._config.sampling.max_new_tokens)
        seed = (self._config.seed, EVALUATION_STREAM, step)
        self.accuracy.append(evaluate(self._engine, scorer, tasks, sampling=sampling, samples=1, seed=seed).accuracy)
        self._paused_s += time.perf_counter() - start


def main() -> None:
    arguments = _arguments()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    replay = ReplayConfig(capacity=arguments.capacity, uses=arguments.uses)
    arms: dict[str, tuple[Any, dict[str, Any]]] = {
        PLAIN: (trl.GRPOTrainer, {}),
        REPLAY: (partial(ReplayGRPOTrainer, replay=replay), {}),
        ITERATIONS: (trl.GRPOTrainer, {"num_iterations": arguments.uses}),
    }
    backend = open_backend(_config(arguments, 0))
    curves: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as directory:
        backend.trainer().save(Path(directory))
        for seed in arguments.seeds:
            for name, (trainer_of, changes) in arms.items():  # in turn, so that what slows the machine meets all
                config = _config(arguments, seed)
                curve = Accuracy(backend, config, arguments.every)
                settings = {**GENERATION, **changes}
                trace = run_trl(config, backend, Path(directory) / "model", settings, trainer_of, [curve])
                curves[name].append(
                    {
                        "seed": seed,
                        "seconds": curve.seconds,
                        "accuracy": curve.accuracy,
                        "optimizer_steps": len(trace.ended_s),
                        "generations": len(trace.reward),
                    }
                )
                print(f"seed {seed}, {name}: {_line(curves[name][-1])}", flush=True)
    figures = {
        "settings": {**vars(arguments), "json": None},
        "environment": {
            "versions": {package: version(package) for package in ("torch", "transformers", "trl")},
            "cores": os.cpu_count(),
            "load_average": os.getloadavg(),
        },
        "time_to_plain_final": {name: times_to_final(curves[name], curves[PLAIN]) for name in arms},
        "curves": curves,
    }
    print(_shown(figures["time_to_plain_final"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=240, help="optimizer steps a run")
    parser.add_argument("--every", type=int, default=6, help="optimizer steps between evaluations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--uses", type=int, default=3, help="uses per rollout, of replay and as num_iterations")
    parser.add_argument("--capacity", type=int, default=720, help="rollouts kept")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads of torch")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def _config(arguments: argparse.Namespace, seed: int) -> RunConfig:
    changes = {
        "seed": seed,
        "threads": arguments.threads,
        "loop": {"train_steps": arguments.steps, "compute_units": 0.0},
    }
    return config_from_dict(merge(recipe_tree(RECIPE), changes))


def times_to_final(runs: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Seconds to plain's last smoothed accuracy over plain's own, seed by seed; None where it was never reached."""
    ratios: list[float | None] = []
    for run, reference in zip(runs, plain, strict=True):
        target = float(smoothed(reference["accuracy"])[-1])
        took, needed = _seconds_to(run, target), _seconds_to(reference, target)
        ratios.append(None if took is None or not needed else took / needed)
    return ratios


def _seconds_to(run: Mapping[str, Any], target: float) -> float | None:
    return compute_to_target(smoothed(run["seconds"]), smoothed(run["accuracy"]), target)


def _line(run: Mapping[str, Any]) -> str:
    return (
        f"{run['optimizer_steps']} optimizer steps, {run['generations']} generations, {run['seconds'][-1]:.1f} s, "
        f"accuracy {run['accuracy'][0]:.3f} to {float(smoothed(run['accuracy'])[-1]):.3f}"
    )


def _shown(ratios: Mapping[str, Sequence[float | None]]) -> str:
    lines = ["wall time to the final accuracy of GRPOTrainer, as a share of its own time to it, a figure a seed:"]
    for name, values in ratios.items():
        reached = [value for value in values if value is not None]
        median = f"{statistics.median(reached):.0%}" if reached else "-"
        each = ", ".join("never" if value is None else f"{value:.0%}" for value in values)
        lines.append(f"{name:>20}: {each}; median of those that reached it {median}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
