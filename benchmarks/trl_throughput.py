"""Optimizer steps per hour of ostinato and of TRL's GRPOTrainer on the same work, and what `import ostinato` costs.

    python benchmarks/trl_throughput.py [--steps 40] [--repeats 5] [--json FILE]

Reports and judges nothing: the exit code is 0 whatever the figures are. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import transformers
from contestants import PHASES, Trace, run_ostinato, run_trl

from ostinato.cli.backends import open_backend
from ostinato.config import RunConfig
from ostinato.protocols import Backend
from ostinato.recipe import config_from_dict, merge, recipe_tree

OURS, TRL = "ostinato", "TRL"
RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"
WARM_UP_STEPS = 5
PROBE_STEPS = 15
# As TRL works: generate a batch with the newest weights, train on it once, publish.
IN_TURN = {
    "loop": {"generators": 1, "trainers": 1, "groups_per_request": 5, "max_staleness": 0, "compute_units": 0.0},
    "buffer": {"kind": "queue", "capacity": 120},
    "evaluation": {"every_units": 0.0},
    "checkpoint_every": 0,
}
# The same, generating the next batch while training on this one; each half has a process and a thread.
OVERLAPPED = {"loop": {"clock": "wall", "max_staleness": 1}}
GENERATION_PATHS: dict[str, dict[str, Any]] = {
    "generate": {},
    "generate, static cache": {"cache_implementation": "static"},
    "generate, eager attention": {"model_init_kwargs": {"attn_implementation": "eager"}},
    # The sizes it infers by itself fill the memory of the machine with cache, which takes minutes on a CPU.
    "continuous batching": {
        "use_transformers_continuous_batching": True,
        "transformers_continuous_batching_config": {"num_blocks": 128, "page_size": 32, "max_batch_tokens": 2048},
    },
}


def main() -> None:
    arguments = _arguments()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    cores = os.cpu_count() or 1
    config, overlapped = _config(arguments.steps), _config(arguments.steps, OVERLAPPED)
    backend = open_backend(config)
    with tempfile.TemporaryDirectory() as directory:
        backend.trainer().save(Path(directory))
        model = Path(directory) / "model"
        probes = _probe_generation_paths(backend, model)
        fastest = min((name for name in probes if isinstance(probes[name], float)), key=lambda name: probes[name])
        generation = GENERATION_PATHS[fastest]
        contestants: dict[str, Callable[[], Trace]] = {
            OURS: lambda: run_ostinato(config, backend),
            TRL: lambda: run_trl(config, backend, model, generation),
            f"{OURS}, overlapped": lambda: run_ostinato(overlapped, backend),
            f"{TRL}, {cores} threads": lambda: run_trl(replace(config, threads=cores), backend, model, generation),
        }
        traces: dict[str, list[Trace]] = {name: [] for name in contestants}
        for _ in range(arguments.repeats):
            for name, run in contestants.items():
                traces[name].append(run())
    figures = {
        "settings": {"steps": arguments.steps, "repeats": arguments.repeats},
        "environment": {
            "versions": {package: version(package) for package in ("torch", "transformers", "trl")},
            "cores": cores,
            "load_average": os.getloadavg(),
        },
        "trl_generation_ms_per_step": probes,
        "trl_generation_used": fastest,
        **_compared(traces),
        "import": _import_cost(),
    }
    print(_shown(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40, help="timed optimizer steps a run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side, alternating")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def _config(steps: int, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The demo's model, task and optimizer without replay, on one thread."""
    tree = merge(merge(recipe_tree(RECIPE), IN_TURN), {"loop": {"train_steps": WARM_UP_STEPS + steps}})
    return config_from_dict(merge(tree, changes or {}))


def _probe_generation_paths(backend: Backend, model: Path) -> dict[str, Any]:
    """Milliseconds a step of TRL on each of its generation paths that run here, or why one does not."""
    config, found = _config(PROBE_STEPS), dict[str, Any]()
    for name, settings in GENERATION_PATHS.items():
        try:
            found[name] = 1000 * _seconds(run_trl(config, backend, model, settings).ended_s)
        except (RuntimeError, ValueError, ImportError, NotImplementedError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _seconds(ended: Sequence[float]) -> float:
    """Mean seconds a step after the warm-up."""
    return (ended[-1] - ended[WARM_UP_STEPS - 1]) / (len(ended) - WARM_UP_STEPS)


def _compared(traces: Mapping[str, Sequence[Trace]]) -> dict[str, Any]:
    fastest = min((name for name in traces if name.startswith(TRL)), key=lambda name: _median_seconds(traces[name]))
    return {
        "contestants": {name: _side(runs) for name, runs in traces.items()},
        "share_of_time": _shares(traces[OURS]),
        "fastest_trl": fastest,
        "ratio_to_fastest_trl": {
            name: _spread(
                [_seconds(b.ended_s) / _seconds(a.ended_s) for a, b in zip(runs, traces[fastest], strict=True)]
            )
            for name, runs in traces.items()
            if name.startswith(OURS)
        },
    }


def _median_seconds(traces: Sequence[Trace]) -> float:
    return statistics.median(_seconds(trace.ended_s) for trace in traces)


def _side(traces: Sequence[Trace]) -> dict[str, Any]:
    return {
        "steps_per_hour": _spread([3600 / _seconds(trace.ended_s) for trace in traces]),
        "cpu_ms_per_step": _spread([1000 * _seconds(trace.ended_cpu_s) for trace in traces]),
        "optimizer_steps": [len(trace.ended_s) for trace in traces],
        "completion_tokens_per_step": statistics.mean(traces[0].tokens),
        "reward_first_steps": statistics.mean(traces[0].reward[:10]),
    }


def _shares(traces: Sequence[Trace]) -> dict[str, dict[str, float]]:
    """Of the time between the end of the warm-up and the last step: each phase, and what is left."""
    shares: dict[str, list[float]] = {phase: [] for phase in (*PHASES, "rest")}
    for trace in traces:
        before, after = trace.busy_s[WARM_UP_STEPS - 1], trace.busy_s[-1]
        total = trace.ended_s[-1] - trace.ended_s[WARM_UP_STEPS - 1]
        parts = [(b - a) / total for a, b in zip(before, after, strict=True)]
        for phase, share in zip(shares, [*parts, 1 - sum(parts)], strict=True):
            shares[phase].append(share)
    return {phase: _spread(values) for phase, values in shares.items()}


def _import_cost() -> dict[str, Any]:
    code = (
        "import sys, time; start = time.perf_counter(); import ostinato; "
        "print(time.perf_counter() - start, 'torch' in sys.modules)"
    )
    runs = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(5)]
    return {"seconds": _spread([float(seconds) for seconds, _ in runs]), "loads_torch": runs[0][1] == "True"}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _shown(figures: Mapping[str, Any]) -> str:
    lines = []
    for name, value in figures["trl_generation_ms_per_step"].items():
        lines.append(f"TRL, {name:<24} " + (f"{value:8.1f} ms a step" if isinstance(value, float) else value))
    for name, values in figures["contestants"].items():
        lines.append(
            f"{name}: optimizer steps per hour {_range(values['steps_per_hour'], '.0f')}, "
            f"completion tokens a step {values['completion_tokens_per_step']:.0f}, "
            f"reward of the first steps {values['reward_first_steps']:.3f}"
        )
    for name, ratio in figures["ratio_to_fastest_trl"].items():
        lines.append(f"{name} / {figures['fastest_trl']}: {_range(ratio, '.2f')}")
    shares = figures["share_of_time"]
    lines.append("ostinato's time: " + ", ".join(f"{phase} {_range(share, '.1%')}" for phase, share in shares.items()))
    cost = figures["import"]
    lines.append(
        f"import ostinato: {_range(cost['seconds'], '.3f')} s, loads torch: {'yes' if cost['loads_torch'] else 'no'}"
    )
    return "\n".join(lines)


def _range(spread: Mapping[str, float], form: str) -> str:
    return f"{spread['median']:{form}} ({spread['min']:{form}} to {spread['max']:{form}})"


if __name__ == "__main__":
    main()
