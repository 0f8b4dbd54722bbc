"""Prompts and answers from a data set of the Hugging Face hub or a directory: `task.name = hf-dataset:PATH`.

PATH is a hub name ("open-r1/OpenR1-Math-220k"), a directory written by `datasets.save_to_disk`, a directory of JSON,
Parquet or CSV files, or one such file. Rows stay where `datasets` keeps them, in files mapped into memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError, MissingExtraError
from ostinato.protocols import Task
from ostinato.tasks.options import refuse_unknown
from ostinato.tasks.score_pool import Verifier
from ostinato.tasks.scoring import SCORERS, fault_of_answer, open_comparison, require_math_verify
from ostinato.tasks.task_set import TEST, EpochOrder, prompt_id

PREFIX = "hf-dataset:"
BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """`task.options`: `subset` (the hub's "config"), `split` to train on, `test_split` (empty: test prompts are held
    out of `split`), the columns of prompt and gold answer (`answer_column` empty: no answers, for a scorer of the
    user's own), `detail_columns` that a scorer gets besides, and whether rows without a usable prompt or answer are
    dropped (`drop_unusable`) or an error."""

    subset: str = ""
    split: str = "train"
    test_split: str = ""
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    detail_columns: tuple[str, ...] = ()
    drop_unusable: bool = False

    @classmethod
    def checked(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Raises `ConfigError` for an option that is unknown or of another type."""
        refuse_unknown(name, options, [item.name for item in fields(cls)])
        given = dict(options)
        columns = given.get("detail_columns", ())
        if not isinstance(columns, list | tuple) or not all(isinstance(column, str) for column in columns):
            raise ConfigError(f"task.options.detail_columns must be a list of column names, got {columns!r}")
        given["detail_columns"] = tuple(columns)
        for item in fields(cls):
            value, kind = given.get(item.name, item.default), type(item.default)
            if not isinstance(value, kind):
                raise ConfigError(f"task.options.{item.name} must be of type {kind.__name__}, got {value!r}")
        return cls(**given)


class DatasetTasks:
    """One task a row. Training runs through all rows whose prompt is not held out, in an order shuffled each epoch.

    `dropped`: rows that could not be used. Raises `ConfigError` when nothing can be loaded from there, a column is
    missing or the data set is too small, `DataError` naming the row for one that cannot be used, `MissingExtraError`
    without the package `datasets`.
    """

    def __init__(self, name: str, options: Mapping[str, Any], *, scoring: str, test_prompts: int, seed: int) -> None:
        self.name = name
        self._options = chosen = DatasetOptions.checked(name, options)
        if scoring == "math-verify":
            require_math_verify()
        self._score = SCORERS[scoring]
        self.open_verifier: Callable[[], Verifier] = partial(open_comparison, scoring)
        self._scoring = scoring
        self._rows = load_rows(name, chosen, chosen.split)
        ids, usable = self._prompt_ids(self._rows, chosen.split)
        if chosen.test_split:
            test_rows = load_rows(name, chosen, chosen.test_split)
            test_ids, test_usable = self._prompt_ids(test_rows, chosen.test_split)
        else:
            test_rows, test_ids, test_usable = self._rows, ids, usable
        self.dropped = int((~usable).sum()) + (int((~test_usable).sum()) if chosen.test_split else 0)
        # Of a repeated prompt the first row stays.
        candidates = np.flatnonzero(test_usable)
        candidates = candidates[np.sort(np.unique(test_ids[candidates], return_index=True)[1])]
        picked = candidates[np.random.default_rng((seed, TEST)).permutation(len(candidates))[:test_prompts]]
        self._training = np.flatnonzero(usable & ~np.isin(ids, test_ids[picked]))
        if len(picked) < test_prompts or not len(self._training):
            raise ConfigError(
                f"{name} offers {len(candidates)} distinct test prompts and then {len(self._training)} training rows, "
                f"task.test_prompts = {test_prompts} needs that many and at least one row to train on"
            )
        self.test = tuple(self._task(test_rows[int(row)]) for row in picked)
        self._order = EpochOrder(len(self._training), seed)

    def train(self, index: int) -> Task:
        """Training task number `index`."""
        return self._task(self._rows[int(self._training[self._order.row(index)])])

    def answer_score(self, task: Task, text: str) -> float:
        """Reward of the completion `text` by the chosen scoring."""
        return self._score(text, task.answer)

    def _task(self, row: Mapping[str, Any]) -> Task:
        options = self._options
        prompt = row[options.prompt_column]
        answer = "" if not options.answer_column else str(row[options.answer_column])
        details = {column: row[column] for column in options.detail_columns}
        return Task(prompt, answer, prompt_id(prompt), self.name, details)

    def _prompt_ids(self, rows: Any, split: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Of all rows (n,): hashes of the prompts, 0 where there is none, and which rows can be used."""
        options = self._options
        prompts: Sequence[Any] = rows[options.prompt_column]
        answers: Sequence[Any] = rows[options.answer_column] if options.answer_column else [""] * len(rows)
        usable = np.array([self._is_usable(p, a) for p, a in zip(prompts, answers, strict=True)], np.bool_)
        if not usable.all() and not options.drop_unusable:
            row = int(np.flatnonzero(~usable)[0])
            raise DataError(
                f"{self.name}, split {split}: {int((~usable).sum())} of {len(usable)} rows have no usable prompt or "
                f"answer, the first is row {row} with {options.prompt_column} = {_shown(prompts[row])} and "
                f"{options.answer_column} = {_shown(answers[row])}; task.options.drop_unusable = true leaves them out"
            )
        ids = [prompt_id(p) if ok else 0 for p, ok in zip(prompts, usable, strict=True)]
        return np.array(ids, np.int64), usable

    def _is_usable(self, prompt: Any, answer: Any) -> bool:
        if not isinstance(prompt, str) or not prompt or isinstance(answer, bool):
            return False
        if not isinstance(answer, str | int | float) or (isinstance(answer, float) and not math.isfinite(answer)):
            return False
        if not self._options.answer_column:
            return True
        return bool(str(answer).strip()) and not fault_of_answer(self._scoring, str(answer))


def load_rows(name: str, options: DatasetOptions, split: str) -> Any:
    """A `datasets.Dataset` with the columns that are used. Raises `ConfigError`, `MissingExtraError`."""
    if importlib.util.find_spec("datasets") is None:
        raise MissingExtraError("datasets", "tasks")
    rows = _loaded(name.removeprefix(PREFIX), options.subset, split)
    wanted = [c for c in (options.prompt_column, options.answer_column, *options.detail_columns) if c]
    for column in wanted:
        if column not in rows.column_names:
            raise ConfigError(f"{name}, split {split}: no column {column!r}; it has {', '.join(rows.column_names)}")
    return rows.select_columns(list(dict.fromkeys(wanted)))


def _loaded(path: str, subset: str, split: str) -> Any:
    datasets: Any = importlib.import_module("datasets")
    place = Path(path)
    try:
        if (place / "dataset_dict.json").is_file():
            return _split_of(datasets.load_from_disk(path), path, split)
        if (place / "state.json").is_file():
            return datasets.load_from_disk(path)
        if place.is_file():
            if place.suffix not in BUILDERS:
                raise ConfigError(f"task.name: {path} must end in one of {', '.join(BUILDERS)}")
            return datasets.load_dataset(BUILDERS[place.suffix], data_files=path, split=split)
        return datasets.load_dataset(path, subset or None, split=split)
    except ConfigError:
        raise
    except Exception as error:  # files, the network and the hub raise errors of many libraries
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"task.name: {PREFIX}{path}, subset {subset or 'default'}, split {split} cannot be loaded: "
            f"{type(error).__name__}: {reason}"
        ) from error


def _split_of(splits: Mapping[str, Any], path: str, split: str) -> Any:
    if split not in splits:
        raise ConfigError(f"task.options: {path} has no split {split!r}; it has {', '.join(splits)}")
    return splits[split]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
