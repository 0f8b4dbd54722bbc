"""`ostinato buffer`."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from ostinato.cli.buffer_display import described, load_tokenizer, row_records, say
from ostinato.cli.buffer_remarks import kept_extras, remarks
from ostinato.errors import ConfigError, DataError
from ostinato.loop.run_directory import newest_checkpoint
from ostinato.rollout_files import (
    ReadRules,
    Stored,
    filled_buffer,
    open_stored,
    renaming,
    shown_rows,
    summary,
    write_rollouts,
)
from ostinato.rollout_files.files import ENDINGS
from ostinato.rollout_files.placing import refuse_existing, refuse_own_source

DEFAULTS = ("temperature", "top_p", "top_k", "policy_version", "source")
"""Options that stand for what lines leave out; None where they were not given."""


def run(arguments: Namespace) -> int:
    """Inspect, export or import; returns the exit code."""
    if arguments.overrides:
        raise ConfigError(f"buffer {arguments.action} takes no settings, got {arguments.overrides[0]!r}")
    {"inspect": _inspect, "export": _export, "import": _import}[arguments.action](arguments)
    return 0


def _inspect(arguments: Namespace) -> None:
    tokenizer = None if arguments.tokenizer is None else load_tokenizer(arguments.tokenizer)
    stored = _opened(arguments)
    numbers: dict[str, Any] = {"path": str(arguments.path), **summary(stored, correct_above=arguments.correct_above)}
    shown = shown_rows(stored, arguments.rows, sort=arguments.sort)
    numbers["rows"] = [] if shown is None else row_records(*shown, tokenizer)
    if arguments.json:
        say(json.dumps(_finite(numbers), allow_nan=False))
    else:
        say("\n".join(described(numbers)))


def _export(arguments: Namespace) -> None:
    _require_ending(arguments.out)
    refuse_existing(arguments.out, overwrite=arguments.force)
    refuse_own_source(arguments.path, arguments.out)
    stored = _opened(arguments)
    written = write_rollouts(arguments.out, stored.parts(), overwrite=arguments.force)
    say(f"{written} rollouts written to {arguments.out}")


def _import(arguments: Namespace) -> None:
    _require_ending(arguments.path)
    refuse_existing(arguments.out, overwrite=arguments.force)
    refuse_own_source(arguments.path, arguments.out)
    stored = _opened(arguments)
    if not len(stored):
        raise DataError(f"{arguments.path} holds no rollouts that can be used")
    buffer = filled_buffer(
        stored,
        capacity=arguments.capacity,
        capacity_bytes=arguments.capacity_bytes,
        train_step=arguments.train_step,
    )
    refuse_existing(arguments.out, overwrite=arguments.force)
    buffer.save(arguments.out)
    left = f"; {len(stored) - len(buffer)} older ones did not fit" if len(buffer) < len(stored) else ""
    say(f"{len(buffer)} rollouts at train step {buffer.train_step} saved to {arguments.out}{left}")
    if stored.report is not None and stored.report.kept:
        say(kept_extras(stored.report.kept), sys.stderr)


def _opened(arguments: Namespace) -> Stored:
    path: Path = arguments.path
    if (path / "checkpoints").is_dir():
        journal = path / "journal"
        path = journal if journal.is_dir() else newest_checkpoint(path)
    given = {name: getattr(arguments, name) for name in DEFAULTS if getattr(arguments, name) is not None}
    rules = _rules(arguments, given)
    stored = open_stored(path, rules)
    if stored.report is not None:
        for line in remarks(stored.report, rules, given):
            say(line, sys.stderr)
    return stored


def _rules(arguments: Namespace, defaults: dict[str, Any]) -> ReadRules:
    return ReadRules(
        missing_logprobs=arguments.missing_logprobs,
        skip_bad=arguments.skip_bad,
        group_by=arguments.group_by,
        rename=renaming(arguments.rename),
        extras=() if arguments.no_extras else None if arguments.extra is None else tuple(arguments.extra),
        **defaults,
    )


def _require_ending(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path} ends in {path.suffix or 'nothing'!r}, expected {' or '.join(ENDINGS)}")


def _finite(value: Any) -> Any:
    """NaN and infinity, which JSON lacks, as null; a damaged column must not hide the others."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
