"""Measure the goals of the replay buffer: `python -m benchmarks.buffer`, see benchmarks/README.md."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import warnings
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ostinato.errors import OstinatoError

from .children import ChildError
from .machine import with_steady_allocator
from .profiles import PROFILES, Source
from .results import Line, as_json, as_markdown, skipped, wrong
from .setting import Setting
from .timing import Pace

GOALS = {
    "G1": "drawing:packed",  # and G1b
    "G2": "drawing:padded",
    "G3": "drawing:small",
    "G4": "adding:adding",
    "G5": "memory:memory",
    "G6": "priorities:prioritized",
    "G7": "freshness:freshness",
    "G8": "drawing:without_replacement",
    "G9": "processes:processes",
    "G10": "checkpoint:checkpoint",
    "G11": "allocator:allocator",
    "G12": "correctness:correctness",
}
ROLLOUTS = 20_736
MARK = "<!-- measured -->"
VERSIONS = ("ostinato", "numpy", "numba", "torch", "torchrl", "tensordict", "cpprb")


def main() -> None:
    """Measure, print a line a figure, write them down."""
    arguments = _arguments()
    with_steady_allocator()
    warnings.simplefilter("ignore")  # of the peers
    if arguments.million:
        million = importlib.import_module(f"{__package__}.million")
        lines = million.million(arguments.million, quick=arguments.quick)
    else:
        lines = _measured(arguments)
    counts = Counter(line.verdict for line in lines)
    print("  ".join(f"{verdict}: {count}" for verdict, count in counts.items()))
    if arguments.json:
        figures = {"environment": _environment(), "quick": arguments.quick, "lines": as_json(lines)}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if arguments.markdown:
        _write_table(arguments.markdown, lines)
    if arguments.strict and counts["MISS"] + counts["wrong"]:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buffer", description="Goals of the replay buffer.")
    parser.add_argument("--quick", action="store_true", help="fewer rollouts and rounds: a smoke test, no figures")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--markdown", type=Path, help="write a table here, behind the mark of a file that has one")
    parser.add_argument("--only", default=",".join(GOALS), help="goals, as G1,G5")
    parser.add_argument("--profile", choices=[*PROFILES, "both"], default="both")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a must is missed")
    parser.add_argument(
        "--million", type=int, nargs="?", const=1_000_000, metavar="N", help="instead: N rollouts x 1,000 tokens"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.only.split(",")) - GOALS.keys()
    if unknown:
        parser.error(f"--only knows {', '.join(GOALS)}, got {sorted(unknown)[0]}")
    return arguments


def _measured(arguments: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    pace = Pace(3, 0.03) if arguments.quick else Pace()
    _one_thread()
    for profile in PROFILES.values():
        if arguments.profile in (profile.name, "both"):
            n = ROLLOUTS // 8 if arguments.quick else ROLLOUTS
            setting = Setting(Source(profile, n), pace, arguments.quick)
            for goal in arguments.only.split(","):
                found = _goal(goal, setting)
                print(*found, sep="\n", flush=True)
                lines += found
    return lines


def _goal(goal: str, setting: Setting) -> list[Line]:
    module, _, function = GOALS[goal].partition(":")
    start = time.perf_counter()
    try:
        lines: list[Line] = getattr(importlib.import_module(f".{module}", __package__), function)(setting)
    except ImportError as error:
        lines = [skipped(goal, setting.profile, function, str(error))]
    except (ChildError, OstinatoError, OSError) as error:  # the other goals are still of interest
        lines = [wrong(goal, setting.profile, function, f"{type(error).__name__}: {error}")]
    print(f"{goal}, {setting.profile}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return lines


def _one_thread() -> None:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


def _write_table(path: Path, lines: list[Line]) -> None:
    """Into a file of its own, or behind the mark of one that exists."""
    before, mark, _ = path.read_text(encoding="utf-8").partition(MARK) if path.exists() else ("", "", "")
    found = _environment()
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    machine = f"`python -m benchmarks.buffer`, {found['cores']} cores, {versions}."
    path.write_text(f"{before if mark else ''}{MARK}\n\n{machine}\n\n{as_markdown(lines)}", encoding="utf-8")


def _environment() -> dict[str, Any]:
    versions = {}
    for package in VERSIONS:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {"versions": versions, "cores": os.cpu_count(), "load_average": os.getloadavg()}


if __name__ == "__main__":
    main()
