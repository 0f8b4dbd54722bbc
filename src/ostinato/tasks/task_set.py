"""`TaskSet`: prompts with a verifier, held-out ones apart; and the one that draws its prompts from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError
from ostinato.protocols import Task
from ostinato.tasks.score_pool import Verifier

TEST, TRAIN = 0, 1
MAX_ATTEMPTS = 1000


def prompt_id(text: str) -> int:
    """A stable 63-bit hash of a prompt (BLAKE2b): the same in every process and on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class EpochOrder:
    """An endless order over `count` rows, shuffled anew each epoch."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def row(self, index: int) -> int:
        """Row number `index` modulo the number of rows, of its epoch's shuffle."""
        epoch, position = divmod(index, self._count)
        return int(self._order(epoch)[position])

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng((self._seed, TRAIN, epoch)).permutation(self._count)


class TaskSet(Protocol):
    """A fixed test set, an endless training stream that never meets it, and the verifier of both.

    `task.answer` is a completion that the verifier accepts (a gold answer); it is empty where the data set has none.
    """

    @property
    def name(self) -> str:
        """The name it was created by; also `task.source`."""

    @property
    def test(self) -> tuple[Task, ...]:
        """The held-out tasks, distinct prompts in a fixed order."""

    def train(self, index: int) -> Task:
        """Training task number `index` (from 0, without end): a pure function, so a resume needs only the cursor."""

    def answer_score(self, task: Task, text: str) -> float:
        """Reward of the completion `text`, in [0, 1] but for a scorer of the user's own."""

    @property
    def open_verifier(self) -> Callable[[], Verifier]:
        """What returns `answer_score` in another process; it can be pickled, and holds none of the tasks."""


class Source(Protocol):
    """Proposes tasks. Proposals may repeat; `ProceduralTasks` keeps the test prompts out of the training stream."""

    def propose(self, split: int, index: int, attempt: int) -> Task:
        """A task that depends on nothing but the arguments and the source's own seed."""

    def score(self, task: Task, text: str) -> float:
        """Reward of a completion."""


class Puzzle(Protocol):
    """One kind of generated problem, its difficulty fixed."""

    def make(self, rng: np.random.Generator) -> tuple[str, str]:
        """A prompt and a gold completion."""

    def score(self, task: Task, text: str) -> float:
        """Reward of a completion."""


@dataclass(frozen=True, slots=True)
class SeededSource:
    """A puzzle whose every proposal has its own random stream (seed, split, index, attempt)."""

    name: str
    puzzle: Puzzle
    seed: int

    def propose(self, split: int, index: int, attempt: int) -> Task:
        """Make one problem."""
        prompt, answer = self.puzzle.make(np.random.default_rng((self.seed, split, index, attempt)))
        return Task(prompt, answer, prompt_id(prompt), self.name)

    def score(self, task: Task, text: str) -> float:
        """Ask the puzzle."""
        return self.puzzle.score(task, text)


class ProceduralTasks:
    """Draws `test_prompts` distinct prompts first; the training stream then rejects whatever is among them.

    Raises `ConfigError` when the source has too few prompts: when as many draws repeat a test prompt as there are
    test prompts (for uniform draws the test set then covers about 80 % of the prompts), or nothing is left to train on.
    """

    def __init__(self, name: str, source: Source, test_prompts: int) -> None:
        self.name = name
        self._source = source
        self.test = self._draw_test(test_prompts)
        self._held_out = frozenset(task.prompt_id for task in self.test)
        self.train(0)

    def train(self, index: int) -> Task:
        """Training task number `index`. Raises `ConfigError` after `MAX_ATTEMPTS` proposals found in the test set."""
        for attempt in range(MAX_ATTEMPTS):
            task = self._source.propose(TRAIN, index, attempt)
            if task.prompt_id not in self._held_out:
                return task
        raise self._too_small()

    def answer_score(self, task: Task, text: str) -> float:
        """Reward of the completion `text`."""
        return self._source.score(task, text)

    @property
    def open_verifier(self) -> Callable[[], Verifier]:
        """The source itself."""
        return partial(_score_of, self._source)

    def _draw_test(self, count: int) -> tuple[Task, ...]:
        found: dict[int, Task] = {}
        for draw in range(2 * count):
            task = self._source.propose(TEST, draw, 0)
            found.setdefault(task.prompt_id, task)
            if len(found) == count:
                return tuple(found.values())
        self.test = tuple(found.values())
        raise self._too_small()

    def _too_small(self) -> ConfigError:
        return ConfigError(
            f"task {self.name!r} has too few distinct prompts to hold out task.test_prompts and still train on others"
            f" ({len(self.test)} held out); lower task.test_prompts or make the task harder in task.options"
        )


def _score_of(source: Source) -> Verifier:
    return source.score
