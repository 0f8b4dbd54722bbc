"""`ostinato train`."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from pathlib import Path

from ostinato.cli.backends import environment, open_backend_aloud
from ostinato.cli.display import display
from ostinato.interrupt import graceful_interrupt
from ostinato.loop.session import Session
from ostinato.recipe import load_recipe
from ostinato.telemetry import read_jsonl


def run(arguments: Namespace) -> int:
    """Train, or go on training; returns the exit code."""
    config = load_recipe(arguments.recipe, arguments.overrides)
    directory: Path = arguments.out or Path("runs") / f"{arguments.recipe.stem}-train"
    backend = open_backend_aloud(config)
    with display(config, str(arguments.recipe)) as observer, graceful_interrupt() as stop:
        session = Session(
            config, backend, directory, resume=arguments.resume, observer=observer, about=environment(backend)
        )
        finished = session.run(stop)
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
