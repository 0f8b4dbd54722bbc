"""`ostinato`: the subcommands, their arguments, and what becomes of an error."""

from __future__ import annotations

import argparse
import errno
import importlib
import math
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from ostinato.cli.buffer_arguments import add_buffer_commands
from ostinato.cli.plan_arguments import add_plan_command
from ostinato.cli.simulate_arguments import add_simulate_command
from ostinato.errors import ConfigError, OstinatoError
from ostinato.recipe import settings_help

COMMANDS = {
    "train": "ostinato.cli.train",
    "compare": "ostinato.cli.compare",
    "eval": "ostinato.cli.evaluate",
    "report": "ostinato.cli.report",
    "buffer": "ostinato.cli.buffer",
    "plan": "ostinato.cli.plan",
    "simulate": "ostinato.cli.simulate",
    "check": "ostinato.cli.check",
    "doctor": "ostinato.cli.doctor",
}
"""Where each subcommand lives; imported only when it is called."""


NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file reached the size limit (File too large)",
}
"""Errors of writing that end when there is room again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns 0, 1 (failure), 2 (usage) or 130 (interrupted)."""
    arguments, overrides = build_parser().parse_known_args(argv)
    arguments.overrides = overrides
    try:
        return int(importlib.import_module(COMMANDS[arguments.command]).run(arguments))
    except KeyboardInterrupt:
        print("ostinato: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) left; point stdout elsewhere so that the interpreter's last flush is silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OstinatoError, OSError, MemoryError) as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"ostinato: error: {explained(error, arguments.command)}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:  # noqa: BLE001 - the roof: what nobody foresaw must still end in one line
        if arguments.debug:
            traceback.print_exc()
        what = f"{type(error).__name__}: {explained(error, arguments.command)}"
        print(f"ostinato: internal error: {what} (--debug shows where; please report it)", file=sys.stderr)
        return 1


def explained(error: BaseException, command: str) -> str:
    """One line for a person: what went wrong and, where we know it, what to do."""
    trains = command in ("train", "compare")
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        where = f" while writing {error.filename}" if error.filename else ""
        cause = NO_ROOM[error.errno]
        again = " with --resume, finished work is kept" if trains else ", nothing was changed"
        return f"{cause}{where}; make room and run again{again}"
    if isinstance(error, MemoryError) and trains:
        return "out of memory; lower optimizer.tokens_per_microbatch, loop.groups_per_request or buffer.capacity"
    return " ".join(str(error).split()) or type(error).__name__


def build_parser() -> argparse.ArgumentParser:
    """Arguments of all subcommands; what they leave over are settings."""
    parser = argparse.ArgumentParser(
        prog="ostinato", description="Experience replay for RL post-training of language models."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = _command(commands, "train", "train one model on one recipe", settings=True)
    train.add_argument("recipe", type=Path, metavar="RECIPE.toml")
    train.add_argument("--out", type=Path, help="run directory (default: runs/<recipe name>-train)")
    train.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the run directory")
    compare = _command(commands, "compare", "run arms side by side over seeds and measure the saving", settings=True)
    compare.add_argument("recipe", type=Path, metavar="RECIPE.toml")
    compare.add_argument("--seeds", type=_positive, default=2, help="seeds an arm (default: 2)")
    compare.add_argument("--first-seed", type=int, default=0, help="number of the first seed (default: 0)")
    compare.add_argument("--arms", default="baseline,replay,epochs", help="comma-separated (default: %(default)s)")
    compare.add_argument("--jobs", type=_positive, help="runs at a time (default: cores / threads)")
    compare.add_argument("--out", type=Path, help="directory (default: runs/<recipe name>-compare)")
    evaluate = _command(commands, "eval", "accuracy and pass@k of a run's newest checkpoint", settings=True)
    evaluate.add_argument("run_directory", type=Path, metavar="RUN")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    report = _command(commands, "report", "write report.html and figures of a run or a comparison", settings=False)
    report.add_argument("run_directory", type=Path, metavar="RUN")
    check = _command(commands, "check", "what a recipe amounts to, before anything is loaded or fetched", settings=True)
    check.add_argument("recipe", type=Path, metavar="RECIPE.toml")
    check.add_argument("--gpu-gib", type=_size, default=80.0, help="memory of a GPU in GiB (default: 80)")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    doctor = _command(commands, "doctor", "whether this machine, and a recipe on it, are fit to train", settings=True)
    doctor.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE.toml")
    doctor.add_argument("--out", type=Path, help="run directory to be (default: runs/<recipe name>-train)")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    add_buffer_commands(commands)
    add_plan_command(commands)
    add_simulate_command(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, *, settings: bool
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=settings_epilog() if settings else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command


def settings_epilog() -> str:
    """Every setting with default and meaning, for --help."""
    rows = list(settings_help())
    width = max(len(f"--{name} {default}") for name, default, _ in rows)
    lines = [f"  {f'--{name} {default}':<{width}}  {text}" for name, default, text in rows]
    return "settings of the recipe, each with its default:\n" + "\n".join(lines)


def _size(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size <= 1 << 20:
        raise argparse.ArgumentTypeError(f"expected GiB above 0, got {text!r}")
    return size


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
