"""Records of any origin, read twice: to see that all is well and what the columns are, then to hand out rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ostinato.errors import DataError
from ostinato.rollout_files.line import Line, line_of, shown
from ostinato.rollout_files.logprobs import MissingLogprobsError
from ostinato.rollout_files.nested import Completion, completions_of
from ostinato.rollout_files.packing import Packing, Survey
from ostinato.rollout_files.settings import ReadReport, ReadRules, RolloutFile
from ostinato.rollouts import Rollouts

Records = Callable[[], Iterator[tuple[int, Any]]]
"""Begins a new reading: line numbers from 1, each with its record, or with the `DataError` of a line that is none."""


def open_logged(
    path: Path, file_format: Literal["jsonl", "parquet"], records: Records, rules: ReadRules
) -> RolloutFile:
    """Look all records through and return what can be read.

    Raises `DataError` naming file and line for the first rollout that cannot be used, unless the rules go on.
    """
    report = ReadReport()
    survey = Survey(rules, report)
    for place, line in _lines(records, rules):
        if isinstance(line, Line):
            survey.see(line)
        elif isinstance(line, MissingLogprobsError) and rules.missing_logprobs == "drop":
            report.without_logprobs += 1
        elif isinstance(line, MissingLogprobsError) or not rules.skip_bad:
            raise DataError(f"{path}:{place}: {line}")
        else:
            report.refuse(f"{path}:{place}: {line}")
    try:
        packing = survey.finished()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return RolloutFile(path, file_format, report, lambda: _parts(records, rules, packing))


def _parts(records: Records, rules: ReadRules, packing: Packing) -> Iterator[Rollouts]:
    done, lines = 0, list[Line]()
    for _, line in _lines(records, rules):
        if isinstance(line, DataError):  # counted when the file was looked through
            continue
        lines.append(line)
        if len(lines) == rules.chunk_rollouts:
            yield packing.packed(lines, done)
            done, lines = done + len(lines), []
    if lines:
        yield packing.packed(lines, done)


def _lines(records: Records, rules: ReadRules) -> Iterator[tuple[str, Line | DataError]]:
    """Every rollout, or why it cannot be one, and where it stands: the line, and the place in a nested one."""
    for number, record in records():
        for completion in _completions(record, rules):
            if isinstance(completion, DataError):
                yield str(number), completion
                continue
            place = f"{number}: {completion.place}" if completion.place else str(number)
            try:
                line: Line | DataError = line_of(completion, number, rules)
            except DataError as error:
                line = error
            yield place, line


def _completions(record: Any, rules: ReadRules) -> list[Completion] | list[DataError]:
    if isinstance(record, DataError):
        return [record]
    if not isinstance(record, Mapping):
        return [DataError(f"expected a JSON object, got {shown(record)}")]
    try:
        return list(completions_of(record, rules.rename))
    except DataError as error:
        return [error]
