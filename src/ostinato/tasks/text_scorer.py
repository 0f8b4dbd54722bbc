"""`TextScorer`: from token ids to rewards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError, MissingExtraError, RunError
from ostinato.protocols import Scores, Task
from ostinato.rollouts import Rollouts
from ostinato.tasks.score_pool import ScorePool
from ostinato.tasks.score_process import CRASH, TIMEOUT, Mark
from ostinato.tasks.task_set import TaskSet

SHOWN_CHARACTERS = 80


class TextScorer:
    """Decodes each completion and asks the task set's verifier; implements `protocols.CountingScorer` and
    `protocols.Reader`.

    `decode` turns the completion tokens of one rollout, int32 (length,), into text without special tokens. An empty
    completion is the text "" and is scored like any other.

    `workers` 0: the verifier runs here. Else it runs in that many processes, which `task_set.open_verifier` prepares,
    and a completion that takes longer than `timeout_s` there, or kills its process, has the reward 0 and is counted.
    """

    def __init__(
        self,
        task_set: TaskSet,
        decode: Callable[[NDArray[np.int32]], str],
        *,
        workers: int = 0,
        timeout_s: float = 10.0,
    ) -> None:
        self._task_set = task_set
        self._decode = decode
        self._pool = ScorePool(task_set.open_verifier, workers=workers, timeout_s=timeout_s) if workers else None

    def score(self, rollouts: Rollouts, tasks: Sequence[Task]) -> NDArray[np.float64]:
        """Rewards, float64 (n,). Raises `DataError` when the verifier raises or returns no finite number."""
        return self.score_counted(rollouts, tasks).rewards

    def score_counted(self, rollouts: Rollouts, tasks: Sequence[Task]) -> Scores:
        """As `score`; raises `RunError` too, when the scoring processes cannot go on."""
        if len(tasks) != len(rollouts):
            raise DataError(f"got {len(tasks)} tasks for {len(rollouts)} rollouts, expected one each")
        pairs = list(zip(tasks, self.texts(rollouts), strict=True))
        marks = self._pool.mark(pairs) if self._pool else [self._mark(task, text) for task, text in pairs]
        for row, (mark, (task, text)) in enumerate(zip(marks, pairs, strict=True)):
            _refuse_unusable(mark, f"rollout {row} of group {rollouts.group_id[row]}", task, text)
        failures = Counter(mark.failure for mark in marks)
        return Scores(np.array([mark.reward for mark in marks], np.float64), failures[TIMEOUT], failures[CRASH])

    def texts(self, rollouts: Rollouts) -> list[str]:
        """Each completion as `decode` reads it."""
        return [self._decode(rollouts.completion(i)) for i in range(len(rollouts))]

    def close(self) -> None:
        """End the processes, if there are any; they also end with this object."""
        if self._pool:
            self._pool.close()

    def _mark(self, task: Task, text: str) -> Mark:
        try:
            return Mark(reward=float(self._task_set.answer_score(task, text)))
        except Exception as error:  # noqa: BLE001 - a stranger's function: raised again with the rollout it fell on
            return Mark(error=f"{type(error).__name__}: {error}", cause=error)


def _refuse_unusable(mark: Mark, rollout: str, task: Task, text: str) -> None:
    if isinstance(mark.cause, MissingExtraError | RunError):
        raise mark.cause
    where = f"{rollout}, prompt {_shown(task.prompt)}, completion {_shown(text)} (task {task.source})"
    if mark.error:
        raise DataError(f"the scorer raised {mark.error}; {where}") from mark.cause
    if not math.isfinite(mark.reward):
        raise DataError(f"the scorer returned {mark.reward}, expected a finite reward; {where}")


def _shown(text: str) -> str:
    """The text quoted on one line, shortened in the middle."""
    half = SHOWN_CHARACTERS // 2
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:half]} ... {text[-half:]}")
