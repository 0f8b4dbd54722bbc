"""`ostinato buffer`."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from ostinato.cli.buffer_display import described, load_tokenizer, row_records
from ostinato.errors import ConfigError, DataError
from ostinato.loop.run_directory import newest_checkpoint
from ostinato.rollout_files import (
    ReadReport,
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
from ostinato.rollout_files.placing import refuse_existing


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
        print(json.dumps(_finite(numbers), allow_nan=False))
    else:
        print("\n".join(described(numbers)))


def _export(arguments: Namespace) -> None:
    _require_ending(arguments.out)
    refuse_existing(arguments.out, overwrite=arguments.force)
    stored = _opened(arguments)
    written = write_rollouts(arguments.out, stored.parts(), overwrite=arguments.force)
    print(f"{written} rollouts written to {arguments.out}")


def _import(arguments: Namespace) -> None:
    _require_ending(arguments.path)
    refuse_existing(arguments.out, overwrite=arguments.force)
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
    print(f"{len(buffer)} rollouts at train step {buffer.train_step} saved to {arguments.out}{left}")


def _opened(arguments: Namespace) -> Stored:
    path: Path = arguments.path
    if (path / "checkpoints").is_dir():
        path = newest_checkpoint(path)
    stored = open_stored(path, _rules(arguments))
    if stored.report is not None:
        for line in _remarks(stored.report):
            print(line, file=sys.stderr)
    return stored


def _rules(arguments: Namespace) -> ReadRules:
    return ReadRules(
        missing_logprobs=arguments.missing_logprobs,
        skip_bad=arguments.skip_bad,
        group_by=arguments.group_by,
        rename=renaming(arguments.rename),
        extras=() if arguments.no_extras else None if arguments.extra is None else tuple(arguments.extra),
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        policy_version=arguments.policy_version,
        source=arguments.source,
    )


def _remarks(report: ReadReport) -> list[str]:
    """What a person must know about what was read, one line each."""
    remarks = [f"refused {complaint}" for complaint in report.complaints]
    if report.refused > len(report.complaints):
        remarks.append(f"refused {report.refused - len(report.complaints)} more lines")
    if report.without_logprobs:
        remarks.append(f"left out {report.without_logprobs} rollouts without log-probs")
    if report.without_reward:
        remarks.append(f"{report.without_reward} rollouts have neither reward nor advantage: both are 0")
    if report.truncated_sampling:
        remarks.append(
            f"{report.truncated_sampling} rollouts were sampled with top_p < 1 or top_k > 0: their log-probs must be"
            " those of the truncated distribution"
        )
    remarks += [f"extra column {name!r} left out: {reason}" for name, reason in report.left_out.items()]
    return remarks


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
