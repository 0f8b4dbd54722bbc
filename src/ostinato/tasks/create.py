"""From `config.TaskConfig` to a task set."""

from __future__ import annotations

from pathlib import Path

from ostinato.config import TaskConfig
from ostinato.errors import ConfigError
from ostinato.tasks.arithmetic import Add, Sort, WordSum
from ostinato.tasks.countdown import Countdown
from ostinato.tasks.jsonl import JsonlTasks
from ostinato.tasks.options import nearest, refuse_unknown
from ostinato.tasks.reasoning import PREFIX, ReasoningGymSource
from ostinato.tasks.task_set import ProceduralTasks, SeededSource, TaskSet

PUZZLES: dict[str, type[Sort | Add | WordSum | Countdown]] = {
    "sort": Sort,
    "add": Add,
    "words": WordSum,
    "countdown": Countdown,
}


def create(config: TaskConfig) -> TaskSet:
    """The task set that a recipe names.

    Raises `ConfigError` for an unknown name (with the nearest valid one), an option that is unknown or out of range, a
    setting of another task, or a task with too few prompts; `DataError` for a broken line of a file;
    `MissingExtraError` for a package that is not installed.
    """
    name = config.name
    if name == "jsonl":
        refuse_unknown(name, config.options, ())
        return JsonlTasks(Path(config.file), scoring=config.scoring, test_prompts=config.test_prompts, seed=config.seed)
    if name == "toy":
        raise ConfigError("task.name = toy has no prompts in text; it goes together with model.backend = toy")
    if config.file or config.scoring != "exact":
        setting = f"task.file = {config.file!r}" if config.file else f"task.scoring = {config.scoring!r}"
        raise ConfigError(f"{setting} belongs to task.name = jsonl, got task.name = {name!r}")
    if name.startswith(PREFIX):
        return ProceduralTasks(
            name, ReasoningGymSource.from_options(name, config.options, config.seed), config.test_prompts
        )
    if name not in PUZZLES:
        near = nearest(name, [*PUZZLES, "jsonl", "toy", PREFIX + "DATASET"])
        raise ConfigError(f"task.name: unknown task {name!r}; did you mean {near!r}?")
    puzzle = PUZZLES[name].from_options(config.options)
    return ProceduralTasks(name, SeededSource(name, puzzle, config.seed), config.test_prompts)
