"""Arguments of `ostinato simulate`; stdlib only, so that --help is quick."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_simulate_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`ostinato simulate`."""
    text = "play a design without a model: ages, uses, waiting and cost under modelled durations"
    simulate = commands.add_parser(
        "simulate", help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    simulate.add_argument("--debug", action="store_true", help="show the traceback of an error")
    simulate.add_argument(
        "recipe", nargs="?", type=Path, metavar="RECIPE.toml", help="take loop, buffer and seed from it"
    )
    _design(simulate.add_argument_group("design (each overrides the recipe)"))
    _service(simulate.add_argument_group("durations, in units of C: one optimizer step on one trainer"))
    output = simulate.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument("--figure", type=Path, metavar="FILE", help="write the histograms, .svg or .png")
    output.add_argument(
        "--figure-2",
        type=Path,
        metavar="DIR",
        help="instead: the seven configurations of the paper's figure 2, SVG and PNG",
    )


def _design(group: argparse._ArgumentGroup) -> None:
    for name, kind, help in (
        ("generators", int, "W"),
        ("trainers", int, "T"),
        ("capacity", int, "N: rollouts kept or queued"),
        ("batch-size", int, "B: rollouts an optimizer step"),
        ("group-size", int, "G: rollouts a prompt"),
        ("groups-per-request", int, "groups that a generator makes together"),
        ("mu", float, "cost of generating a batch over training on it"),
        ("publish-every", int, "train steps between two offers of new weights"),
        ("max-staleness", int, "oldest rollout that may be trained on"),
        ("epochs", int, "consecutive train steps on each drawn batch"),
        ("min-size", int, "rollouts needed before a draw"),
        ("positive-bias", float, "delta: share of the capacity for older correct rollouts"),
        ("seed", int, "seed of the draws and durations"),
    ):
        group.add_argument(f"--{name}", type=kind, help=help)
    group.add_argument("--steps", type=int, help="optimizer steps to play (default: the recipe's, else 2000)")
    group.add_argument("--buffer", choices=("replay", "queue"), help="draws do not remove, or each rollout once")
    group.add_argument("--order", choices=("newest", "oldest"), help="of a queue")
    group.add_argument("--sampler", choices=("uniform", "never_used_first", "epoch"), help="of a replay buffer")
    group.add_argument("--no-replacement", action="store_true", help="uniform: a rollout at most once in a batch")
    group.add_argument("--shards", action="store_true", help="T buffer shards of N/T, each drawing B/T")


def _service(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--lengths",
        default="fixed",
        metavar="HOW",
        help="of completions: fixed (default), lognormal:SIGMA, or those in a run, buffer or file of rollouts",
    )
    group.add_argument(
        "--batching",
        choices=("continuous", "longest"),
        default="continuous",
        help="a request takes as long as its mean length says (default), or as its longest completion",
    )
    group.add_argument(
        "--stragglers", type=_pair, default=(0.0, 1.0), metavar="FRACTION,FACTOR", help="requests that take longer"
    )
    group.add_argument("--pause", type=float, default=0.0, help="lost by a generator when it takes new weights")
    group.add_argument(
        "--pause-for",
        choices=("taken", "published"),
        default="taken",
        help="pause once when new weights are taken (default), or for each time they were published",
    )
    group.add_argument(
        "--reward-latency", type=float, default=0.0, help="between a request's last token and its reward"
    )
    group.add_argument("--success-rate", type=float, default=0.0, help="probability of reward 1 (default: 0)")


def _pair(text: str) -> tuple[float, float]:
    try:
        fraction, factor = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected FRACTION,FACTOR, got {text!r}") from None
    return fraction, factor
