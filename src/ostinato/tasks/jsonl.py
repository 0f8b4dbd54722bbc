"""Prompts and answers from a JSONL file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.errors import ConfigError, DataError
from ostinato.protocols import Task
from ostinato.tasks.score_pool import Verifier
from ostinato.tasks.scoring import SCORERS, fault_of_answer, open_comparison, require_math_verify
from ostinato.tasks.task_set import TEST, EpochOrder, prompt_id

PROMPT_KEYS = ("prompt", "question")
SPLITS = ("train", "test")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    task: Task
    split: str | None


class JsonlTasks:
    """One task a line: `{"prompt" or "question": str, "answer": str or number, "split": "train" or "test"}`.

    `split` stands on every line or on none. Without it, `test_prompts` distinct prompts chosen by the seed are held out
    with all their repetitions; with it, `test_prompts` of the test lines are used and no prompt may stand in both.
    Training runs through all training lines in an order shuffled anew each epoch. Other keys are the task's details.

    Raises `DataError` naming file and line for a line that cannot be used, `ConfigError` when the file is missing or
    too small, `MissingExtraError` when scoring needs a package that is not installed.
    """

    name = "jsonl"

    def __init__(self, path: Path, *, scoring: str, test_prompts: int, seed: int) -> None:
        if scoring == "math-verify":
            require_math_verify()
        self._score = SCORERS[scoring]
        self.open_verifier: Callable[[], Verifier] = partial(open_comparison, scoring)
        rows = _read(path, scoring)
        _refuse_straddling(rows, path)
        # Reversed, so that of a repeated prompt the first line stays.
        distinct = {row.task.prompt_id: row.task for row in reversed(rows) if row.split != "train"}
        candidates = list(distinct.values())[::-1]
        chosen = np.random.default_rng((seed, TEST)).permutation(len(candidates))[:test_prompts]
        self.test = tuple(candidates[i] for i in chosen)
        held_out = {task.prompt_id for task in self.test}
        self._training = [row.task for row in rows if row.split != "test" and row.task.prompt_id not in held_out]
        if len(self.test) < test_prompts or not self._training:
            raise ConfigError(
                f"{path} offers {len(candidates)} distinct test prompts and then {len(self._training)} training lines,"
                f" task.test_prompts = {test_prompts} needs that many and at least one line to train on"
            )
        self._order = EpochOrder(len(self._training), seed)

    def train(self, index: int) -> Task:
        """Training task number `index`: line `index` modulo the number of lines of its epoch's shuffle."""
        return self._training[self._order.row(index)]

    def answer_score(self, task: Task, text: str) -> float:
        """Reward of the completion `text` by the chosen scoring."""
        return self._score(text, task.answer)


def _refuse_straddling(rows: Sequence[_Row], path: Path) -> None:
    first: dict[int, _Row] = {}
    for row in rows:
        earlier = first.setdefault(row.task.prompt_id, row)
        if earlier.split != row.split:
            raise DataError(
                f"{path}:{row.line}: this prompt is in the {row.split} split here and in {earlier.split} at line"
                f" {earlier.line}; a prompt must stay in one split"
            )


def _read(path: Path, scoring: str) -> list[_Row]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"task.file {path} cannot be read: {error.strerror}") from None
    rows: list[_Row] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _row(number, line, scoring)
            if rows and (row.split is None) != (rows[0].split is None):
                raise DataError(f"'split' must stand on every line or on none; line {rows[0].line} differs")
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        rows.append(row)
    return rows


def _row(number: int, line: bytes, scoring: str) -> _Row:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"expected one JSON object a line, got {_shown(line.decode(errors='replace'))} ({error})"
        ) from None
    if not isinstance(record, dict):
        raise DataError(f"expected a JSON object, got {_shown(record)}")
    prompts = [record[key] for key in PROMPT_KEYS if key in record]
    if len(prompts) != 1 or not isinstance(prompts[0], str) or not prompts[0]:
        raise DataError(f"expected one non-empty string under 'prompt' or 'question', got {_shown(record)}")
    answer = _answer(record)
    for text in (prompts[0], answer):
        if LONE_SURROGATE.search(text):
            raise DataError(f"expected Unicode text, got a lone surrogate in {_shown(text)}")
    if wanted := fault_of_answer(scoring, answer):
        raise DataError(f"expected {wanted} under 'answer' for this scoring, got {_shown(answer)}")
    split = record.get("split")
    if "split" in record and split not in SPLITS:
        raise DataError(f"expected 'train' or 'test' under 'split', got {_shown(split)}")
    details = {key: value for key, value in record.items() if key not in (*PROMPT_KEYS, "answer", "split")}
    return _Row(number, Task(prompts[0], answer, prompt_id(prompts[0]), JsonlTasks.name, details), split)


def _answer(record: dict[str, Any]) -> str:
    answer = record.get("answer")
    # No integer is infinite; asking it overflows on a long one.
    number = isinstance(answer, int) or (isinstance(answer, float) and math.isfinite(answer))
    if isinstance(answer, bool) or not (isinstance(answer, str) or number):
        raise DataError(f"expected a string or a finite number under 'answer', got {_shown(record)}")
    return str(answer)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
