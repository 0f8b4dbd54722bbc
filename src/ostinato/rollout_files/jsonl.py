"""Rollouts as JSONL: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.rollout_files.extras import Layout, typed
from ostinato.rollout_files.line import shown
from ostinato.rollout_files.logged import open_logged
from ostinato.rollout_files.placing import new_file
from ostinato.rollout_files.settings import ReadRules, RolloutFile
from ostinato.rollouts import ROW_COLUMNS, Rollouts


def open_jsonl(path: Path, rules: ReadRules) -> RolloutFile:
    """Look a JSONL file of logged rollouts through; its fields are those of `ostinato.rollout_files.names`.

    Raises `DataError` naming file and line, `OSError` when the file cannot be read.
    """
    end = path.stat().st_size  # what is appended meanwhile belongs to the next reading
    return open_logged(path, "jsonl", lambda: _records(path, end), rules)


def write_jsonl(path: Path, parts: Iterable[Rollouts], *, overwrite: bool = False) -> int:
    """Write rollouts one a line, whole or not at all; returns their number. What comes back is equal bit for bit.

    Raises `ConfigError` when the file exists and may not be overwritten, `DataError` for extra columns of structured
    dtypes.
    """
    written = 0
    with new_file(path, overwrite=overwrite) as file:
        for part in parts:
            layouts = {name: Layout.of(name, column) for name, column in part.extras.items()}
            for row in range(len(part)):
                file.write(json.dumps(_record(part, row, layouts), separators=(",", ":")).encode() + b"\n")
            written += len(part)
    return written


def _records(path: Path, end: int) -> Iterator[tuple[int, Any]]:
    position = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            line = line[: end - position]
            position += len(line)
            if line.strip():
                yield number, _record_of(line)
            if position >= end:
                return


def _record_of(line: bytes) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_object)
    except DataError as error:
        return error
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            return DataError("the last line is torn: the file ends in the middle of it")
        return DataError(f"expected one JSON object a line, got {shown(line.decode(errors='replace'))} ({error})")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{shown(twice)} stands twice in one object")
    return found


def _record(rollouts: Rollouts, row: int, layouts: dict[str, Layout]) -> dict[str, Any]:
    start, stop = int(rollouts.offsets[row]), int(rollouts.offsets[row + 1])
    middle = start + int(rollouts.prompt_length[row])
    mask, logprobs = rollouts.loss_mask[start:stop], rollouts.behavior_logprobs[start:stop]
    prompt = middle - start
    record: dict[str, Any] = {
        "prompt_ids": rollouts.tokens[start:middle].tolist(),
        "completion_ids": rollouts.tokens[middle:stop].tolist(),
        # What stands over the prompt is left out unless it says something (-0.0 does).
        "logprobs": _digits(logprobs if logprobs[:prompt].view(np.int32).any() else logprobs[prompt:]),
    }
    if mask[:prompt].any():
        record["loss_mask"] = mask.astype(int).tolist()
    elif not mask[prompt:].all():
        record["loss_mask"] = mask[prompt:].astype(int).tolist()
    for name, dtype in ROW_COLUMNS.items():
        if name != "prompt_length":
            value = getattr(rollouts, name)[row]
            record[name] = _shortest(value) if dtype is np.float32 else value.item()
    extras = {name: typed(layout, rollouts.extras[name], row) for name, layout in layouts.items()}
    return record | ({"extras": extras} if extras else {})


def _digits(values: NDArray[np.float32]) -> list[float]:
    """Nine digits, which name a float32 uniquely: as near to it as a quarter of the way to its neighbors."""
    return [float(f"{value:.9g}") for value in values.tolist()]


def _shortest(value: np.float32) -> float:
    """0.7 for float32(0.7), if that reads back as the same."""
    short = float(str(value))
    return short if np.float32(short) == value else float(value)
