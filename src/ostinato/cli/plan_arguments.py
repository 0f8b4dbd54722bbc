"""Arguments of `ostinato plan`; stdlib only, so that --help is quick."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_plan_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`ostinato plan`."""
    text = "how many generators, trainers and rollouts to keep, from numbers, a run or a quick measurement"
    plan = commands.add_parser("plan", help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    plan.add_argument("--debug", action="store_true", help="show the traceback of an error")
    plan.add_argument("run_directory", nargs="?", type=Path, metavar="RUN", help="take what is not given from this run")
    plan.add_argument(
        "--measure",
        type=Path,
        metavar="RECIPE.toml",
        help="time generating and training of this recipe's model; further settings as --section.key=value",
    )
    _workload(plan.add_argument_group("workload (each overrides what a run or a measurement says)"))
    _hardware(plan.add_argument_group("hardware and sizes"))
    output = plan.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument("--write", type=Path, metavar="FILE.toml", help="write a recipe for `ostinato train`")
    output.add_argument("--force", action="store_true", help="overwrite the recipe that is there")
    output.add_argument("--figures", type=Path, metavar="DIR", help="write the figures of this workload, SVG and PNG")


def _workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--mu", type=float, help="cost of generating a batch over training on it")
    group.add_argument("--rho", type=float, help="correlation of rollouts in the buffer, 0 to 1 (default: all of it)")
    law = group.add_mutually_exclusive_group()
    law.add_argument("--alpha", type=float, help="sigma(age) = age^alpha (default: 0.1, an assumption)")
    law.add_argument(
        "--variance",
        type=_law,
        metavar="AGE=VALUE,...",
        help="sigma^2 measured at ages in train steps, e.g. 0=1,4=1.2,16=1.5",
    )


def _hardware(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gpus", type=_positive, help="W + T (default: the run's or recipe's, else 8)")
    group.add_argument("--colocated", action="store_true", help="the same GPUs generate and train in turns")
    group.add_argument("--batch-size", type=_positive, metavar="B", help="rollouts a train step (default: 60)")
    group.add_argument("--group-size", type=_positive, metavar="G", help="rollouts a prompt (default: 16)")
    group.add_argument("--max-capacity", type=_positive, metavar="N", help="rollouts that memory holds (default: any)")
    group.add_argument("--sharded", action="store_true", help="T shards: T divides the batch and the capacity")
    group.add_argument(
        "--no-buffer-split", type=_split, metavar="W,T", help="compare with this one (default: the best of these GPUs)"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _split(text: str) -> tuple[int, int]:
    generators, _, trainers = text.partition(",")
    try:
        return _positive(generators), _positive(trainers)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected W,T, two whole numbers of at least 1, got {text!r}") from None


def _law(text: str) -> tuple[list[float], list[float]]:
    try:
        pairs = [tuple(map(float, part.split("="))) for part in text.split(",")]
        return [age for age, _ in pairs], [value for _, value in pairs]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected AGE=VALUE,AGE=VALUE,..., got {text!r}") from None
