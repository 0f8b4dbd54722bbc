"""Arguments of `ostinato buffer`; stdlib only, so that --help is quick."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_buffer_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`ostinato buffer inspect | export | import`."""
    text = "look into a buffer on disk, export its rollouts, import logged ones"
    buffer = commands.add_parser("buffer", help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    actions = buffer.add_subparsers(dest="action", required=True, metavar="ACTION")
    inspect = _action(actions, "inspect", "print what a buffer, run or file of rollouts holds; changes nothing")
    inspect.add_argument("path", type=Path, metavar="PATH", help=WHERE)
    inspect.add_argument(
        "--correct-above", type=float, default=0.5, help="a reward above this is correct (default: 0.5)"
    )
    inspect.add_argument("--rows", type=_count, default=3, help="rollouts to show (default: 3)")
    inspect.add_argument("--sort", choices=("reward", "age", "uses"), help="highest, oldest or most used first")
    inspect.add_argument("--tokenizer", metavar="NAME_OR_PATH", help="show text instead of token ids")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    export = _action(actions, "export", "write the rollouts to a .parquet or .jsonl file")
    export.add_argument("path", type=Path, metavar="PATH", help=WHERE)
    export.add_argument("--out", type=Path, required=True, metavar="FILE", help="ends in .parquet or .jsonl")
    incoming = _action(actions, "import", "make a buffer snapshot of rollouts logged elsewhere")
    incoming.add_argument("path", type=Path, metavar="FILE", help=".jsonl or .parquet, see docs/buffer-files.md")
    incoming.add_argument("--out", type=Path, required=True, metavar="PATH", help="the snapshot to write")
    incoming.add_argument("--capacity", type=int, help="rollouts the buffer holds at most (default: what is there)")
    incoming.add_argument("--capacity-bytes", type=int, help="bytes it holds at most (default: no bound)")
    incoming.add_argument(
        "--train-step", type=int, help="train step of the insertion (default: the newest in the file)"
    )
    for action in (export, incoming):
        action.add_argument("--force", action="store_true", help="overwrite a file that is there")
    for action in (inspect, export, incoming):
        _reading(action)


WHERE = "snapshot, run or checkpoint directory, journal directory, .jsonl or .parquet file"


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    action.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return action


def _reading(action: argparse.ArgumentParser) -> None:
    reading = action.add_argument_group("reading of a .jsonl or foreign .parquet file")
    reading.add_argument(
        "--missing-logprobs",
        choices=("error", "drop"),
        default="error",
        help="rollouts without log-probs (default: error)",
    )
    reading.add_argument("--skip-bad", action="store_true", help="count lines that cannot be used and go on")
    reading.add_argument(
        "--group-by",
        choices=("line", "prompt"),
        default="line",
        help="lines without a group id: a group each, or one a prompt (default: line)",
    )
    reading.add_argument("--rename", action="append", default=[], metavar="THEIRS=OURS", help="repeatable")
    reading.add_argument("--extra", action="append", metavar="NAME", help="keep only these extra columns; repeatable")
    reading.add_argument("--no-extras", action="store_true", help="keep no extra columns")
    defaults = action.add_argument_group("for lines that do not say")
    defaults.add_argument("--temperature", type=float, help="(default: 1)")
    defaults.add_argument("--top-p", type=float, help="(default: 1)")
    defaults.add_argument("--top-k", type=int, help="(default: 0, off)")
    defaults.add_argument("--policy-version", type=int, help="(default: 0)")
    defaults.add_argument("--source", help="name of the data set")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)
