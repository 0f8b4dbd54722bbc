"""From `config.TaskConfig` to a task set and its scorer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.config import TaskConfig
from ostinato.errors import ConfigError
from ostinato.protocols import Task
from ostinato.tasks.arithmetic import Add, Sort, WordSum
from ostinato.tasks.countdown import Countdown
from ostinato.tasks.hf_dataset import PREFIX as DATASET_PREFIX
from ostinato.tasks.hf_dataset import DatasetTasks
from ostinato.tasks.jsonl import JsonlTasks
from ostinato.tasks.options import nearest, refuse_unknown
from ostinato.tasks.reasoning import PREFIX as GYM_PREFIX
from ostinato.tasks.reasoning import ReasoningGymSource
from ostinato.tasks.score_pool import Verifier
from ostinato.tasks.scoring import fault_of_answer, open_comparison
from ostinato.tasks.task_set import ProceduralTasks, SeededSource, TaskSet, prompt_id
from ostinato.tasks.text_scorer import TextScorer
from ostinato.tasks.user_scorer import load_scorer

PUZZLES: dict[str, type[Sort | Add | WordSum | Countdown]] = {
    "sort": Sort,
    "add": Add,
    "words": WordSum,
    "countdown": Countdown,
}

DEFAULT_WORKERS = 2
"""Processes that score what may hang: Math-Verify, reasoning-gym and scorers of the user's own."""


def create(config: TaskConfig) -> TaskSet:
    """The task set that a recipe names.

    Raises `ConfigError` for an unknown name (with the nearest valid one), an option that is unknown or out of range, a
    setting of another task, a scorer that cannot be used, or a task with too few prompts; `DataError` for a broken line
    of a file; `MissingExtraError` for a package that is not installed.
    """
    tasks = _task_set(config)
    if config.prompt_suffix:
        tasks = Suffixed(tasks, config.prompt_suffix)
    return Rescored(tasks, partial(load_scorer, config.scorer)) if config.scorer else tasks


def create_scorer(config: TaskConfig, task_set: TaskSet, decode: Callable[[NDArray[np.int32]], str]) -> TextScorer:
    """The scorer of `create(config)`, in as many processes as the recipe asks for. Raises `ConfigError`."""
    return TextScorer(task_set, decode, workers=score_workers(config), timeout_s=config.score_timeout_s)


def score_workers(config: TaskConfig) -> int:
    """`task.score_workers`, or what it is for this task. Raises `ConfigError` for one that cannot be scored here."""
    mathematics = config.scoring == "math-verify"
    if config.score_workers is None:
        return DEFAULT_WORKERS if mathematics or config.scorer or config.name.startswith(GYM_PREFIX) else 0
    if config.score_workers == 0 and mathematics:
        raise ConfigError(
            "task.score_workers = 0: nothing would end a completion that keeps math-verify busy; use at least 1"
        )
    return config.score_workers


class Suffixed:
    """A task set whose prompts end with `suffix`, an instruction for the answer's form for example."""

    def __init__(self, task_set: TaskSet, suffix: str) -> None:
        self.name, self.answer_score, self.open_verifier = task_set.name, task_set.answer_score, task_set.open_verifier
        self._task_set, self._suffix = task_set, suffix
        self.test = tuple(map(self._suffixed, task_set.test))

    def train(self, index: int) -> Task:
        """Training task number `index`."""
        return self._suffixed(self._task_set.train(index))

    def _suffixed(self, task: Task) -> Task:
        prompt = task.prompt + self._suffix
        return replace(task, prompt=prompt, prompt_id=prompt_id(prompt))


class Rescored:
    """The tasks of a set with another verifier. Raises what `open_verifier` does."""

    def __init__(self, task_set: TaskSet, open_verifier: Callable[[], Verifier]) -> None:
        self.name, self.test, self.train = task_set.name, task_set.test, task_set.train
        self.open_verifier = open_verifier
        self.answer_score = open_verifier()


def _task_set(config: TaskConfig) -> TaskSet:
    name = config.name
    if config.scorer and config.scoring != "exact":
        raise ConfigError(f"task.scorer {config.scorer!r} and task.scoring = {config.scoring}: set one of them")
    if name == "jsonl":
        refuse_unknown(name, config.options, ())
        return JsonlTasks(Path(config.file), scoring=config.scoring, test_prompts=config.test_prompts, seed=config.seed)
    if name == "toy":
        raise ConfigError("task.name = toy has no prompts in text; it goes together with model.backend = toy")
    if config.file:
        raise ConfigError(f"task.file = {config.file!r} belongs to task.name = jsonl, got task.name = {name!r}")
    if name.startswith(DATASET_PREFIX):
        return DatasetTasks(
            name, config.options, scoring=config.scoring, test_prompts=config.test_prompts, seed=config.seed
        )
    if name.startswith(GYM_PREFIX):
        return _gym_tasks(config)
    if config.scoring != "exact":
        raise ConfigError(
            f"task.scoring = {config.scoring!r} belongs to task.name = jsonl, hf-dataset or reasoning-gym, "
            f"got task.name = {name!r}"
        )
    if name not in PUZZLES:
        near = nearest(name, [*PUZZLES, "jsonl", "toy", GYM_PREFIX + "DATASET", DATASET_PREFIX + "PATH"])
        raise ConfigError(f"task.name: unknown task {name!r}; did you mean {near!r}?")
    puzzle = PUZZLES[name].from_options(config.options)
    return ProceduralTasks(name, SeededSource(name, puzzle, config.seed), config.test_prompts)


def _gym_tasks(config: TaskConfig) -> TaskSet:
    source = ReasoningGymSource.from_options(config.name, config.options, config.seed)
    tasks = ProceduralTasks(config.name, source, config.test_prompts)
    if config.scoring == "exact":
        return tasks
    for task in tasks.test:
        if wanted := fault_of_answer(config.scoring, task.answer):
            raise ConfigError(
                f"task.scoring = {config.scoring} needs {wanted} as each answer, {config.name} has {task.answer!r}"
            )
    return Rescored(tasks, partial(open_comparison, config.scoring))
