"""`ostinato train`."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostinato.cli.backends import open_backend_aloud
from ostinato.cli.display import display, warn
from ostinato.cli.runtime import open_runtime
from ostinato.interrupt import graceful_interrupt
from ostinato.recipe import load_recipe
from ostinato.telemetry import read_jsonl
from ostinato.trackers import tracked


def run(arguments: Namespace) -> int:
    """Train, or go on training; returns the exit code."""
    config = load_recipe(arguments.recipe, arguments.overrides)
    directory: Path = arguments.out or Path("runs") / f"{arguments.recipe.stem}-train"
    name = config.tracking.run or directory.name
    with (
        open_runtime(config, directory, open_backend_aloud) as runtime,
        display(config, str(arguments.recipe)) as show,
        tracked(config, directory, name=name, resume=arguments.resume, tell=warn) as track,
        graceful_interrupt() as stop,
    ):

        def observe(record: Mapping[str, Any]) -> None:
            show(record)
            track(record)

        finished = runtime.run(stop, resume=arguments.resume, observer=observe)
    if not finished:
        words = ["ostinato", "train", str(arguments.recipe), "--out", str(directory), *arguments.overrides, "--resume"]
        print(f"stopped; go on with: {shlex.join(words)}", file=sys.stderr)
        return 130
    evaluations = [r for r in read_jsonl(directory / "metrics.jsonl") if r["event"] == "evaluation"]
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        print(f"sampled accuracy {first['sampled_accuracy']:.3f} -> {last['sampled_accuracy']:.3f}", end="")
        if last["greedy_accuracy"] is not None:
            print(f", greedy {first['greedy_accuracy']:.3f} -> {last['greedy_accuracy']:.3f}", end="")
        print(f" after {last['compute']:.1f} baseline updates of compute")
    print(f"run: {directory}; figures: ostinato report {directory}")
    return 0
