"""`TextScorer`: from token ids to rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError, MissingExtraError, RunError
from ostinato.protocols import Task
from ostinato.rollouts import Rollouts
from ostinato.tasks.task_set import TaskSet

SHOWN_CHARACTERS = 80


class TextScorer:
    """Decodes each completion and asks the task set's verifier; implements `protocols.Scorer`.

    `decode` turns the completion tokens of one rollout, int32 (length,), into text without special tokens. An empty
    completion is the text "" and is scored like any other.
    """

    def __init__(self, task_set: TaskSet, decode: Callable[[NDArray[np.int32]], str]) -> None:
        self._task_set = task_set
        self._decode = decode

    def score(self, rollouts: Rollouts, tasks: Sequence[Task]) -> NDArray[np.float64]:
        """Rewards, float64 (n,). Raises `DataError` when the verifier raises or returns no finite number."""
        if len(tasks) != len(rollouts):
            raise DataError(f"got {len(tasks)} tasks for {len(rollouts)} rollouts, expected one each")
        texts = [self._decode(rollouts.completion(i)) for i in range(len(rollouts))]
        return np.array([self._reward(task, text) for task, text in zip(tasks, texts, strict=True)], np.float64)

    def _reward(self, task: Task, text: str) -> float:
        where = f"prompt {_shown(task.prompt)}, completion {_shown(text)} (task {task.source})"
        try:
            reward = float(self._task_set.answer_score(task, text))
        except (MissingExtraError, RunError):
            raise
        except Exception as error:
            raise DataError(f"the scorer raised {type(error).__name__}: {error}; {where}") from error
        if not math.isfinite(reward):
            raise DataError(f"the scorer returned {reward}, expected a finite reward; {where}")
        return reward


def _shown(text: str) -> str:
    """The text quoted on one line, shortened in the middle."""
    half = SHOWN_CHARACTERS // 2
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:half]} ... {text[-half:]}")
