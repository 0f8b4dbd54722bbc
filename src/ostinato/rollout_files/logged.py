"""Records of any origin, read twice: to see that all is well and what the columns are, then to hand out rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ostinato.errors import DataError
from ostinato.rollout_files.line import Line, line_of, shown
from ostinato.rollout_files.logprobs import MissingLogprobsError
from ostinato.rollout_files.packing import Packing, Survey
from ostinato.rollout_files.settings import ReadReport, ReadRules, RolloutFile
from ostinato.rollouts import Rollouts

Records = Callable[[], Iterator[tuple[int, Any]]]
"""Begins a new reading: line numbers from 1, each with its record, or with the `DataError` of a line that is none."""


def open_logged(
    path: Path, file_format: Literal["jsonl", "parquet"], records: Records, rules: ReadRules
) -> RolloutFile:
    """Look all records through and return what can be read.

    Raises `DataError` naming file and line for the first record that cannot be used, unless the rules go on.
    """
    report = ReadReport()
    survey = Survey(rules, report)
    for number, record in records():
        try:
            survey.see(_line(record, number, rules))
        except MissingLogprobsError as error:
            if rules.missing_logprobs == "error":
                raise DataError(f"{path}:{number}: {error}") from None
            report.without_logprobs += 1
        except DataError as error:
            if not rules.skip_bad:
                raise DataError(f"{path}:{number}: {error}") from None
            report.refuse(f"{path}:{number}: {error}")
    try:
        packing = survey.finished()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return RolloutFile(path, file_format, report, lambda: _parts(records, rules, packing))


def _parts(records: Records, rules: ReadRules, packing: Packing) -> Iterator[Rollouts]:
    done, lines = 0, list[Line]()
    for line in _usable(records, rules):
        lines.append(line)
        if len(lines) == rules.chunk_rollouts:
            yield packing.packed(lines, done)
            done, lines = done + len(lines), []
    if lines:
        yield packing.packed(lines, done)


def _usable(records: Records, rules: ReadRules) -> Iterator[Line]:
    for number, record in records():
        try:
            yield _line(record, number, rules)
        except DataError:  # counted when the file was looked through
            continue


def _line(record: Any, number: int, rules: ReadRules) -> Line:
    if isinstance(record, DataError):
        raise record
    if not isinstance(record, Mapping):
        raise DataError(f"expected a JSON object, got {shown(record)}")
    return line_of(record, number, rules)
