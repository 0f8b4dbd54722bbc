"""Generate completions of held-out tasks, score them, count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError, OstinatoError
from ostinato.evaluation.pass_at_k import pass_at_k
from ostinato.protocols import Generator, GroupRequest, Reader, Sampling, Scorer, Scores, Task, scores_of
from ostinato.rollouts import Rollouts, concatenate


@dataclass(frozen=True, slots=True)
class Example:
    """A held-out prompt, the answer it wants, and the first completion it got, as text."""

    prompt: str
    answer: str
    completion: str
    correct: bool

    def record(self) -> dict[str, Any]:
        """As it stands in metrics.jsonl."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Counts of one evaluation over m tasks.

    `correct` int64 (m,): correct completions of each task, out of `samples`; `mean_length` in completion tokens;
    `truncated_fraction` of the completions that hit the length limit; `unscored` completions count as wrong because
    their scoring had to be ended; `examples` of the first tasks, where the scorer can read.
    """

    correct: NDArray[np.int64]
    samples: int
    mean_length: float
    truncated_fraction: float
    unscored: int = 0
    examples: tuple[Example, ...] = ()

    @property
    def accuracy(self) -> float:
        """avg@k with k = `samples`: the fraction of all completions that are correct."""
        return float(self.correct.mean() / self.samples)

    @property
    def standard_error(self) -> float:
        """Of `accuracy`, over prompts: deviation (ddof=1) of the tasks' own accuracies / sqrt(m); NaN for one task."""
        m = len(self.correct)
        return float(np.std(self.correct / self.samples, ddof=1) / np.sqrt(m)) if m > 1 else float("nan")

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k, mean over tasks. Raises `ConfigError` when k > `samples`."""
        return float(pass_at_k(self.samples, self.correct, k).mean())


def evaluate(
    generator: Generator,
    scorer: Scorer,
    tasks: Sequence[Task],
    *,
    sampling: Sampling,
    samples: int,
    seed: tuple[int, ...],
    correct_above: float = 0.5,
    examples: int = 0,
) -> Evaluation:
    """Draw `samples` completions of each task under the weights the generator holds and count the correct ones.

    A completion is correct when its reward exceeds `correct_above`. Task i has the random stream (*seed, i), so its
    completions do not depend on the other tasks. Greedy accuracy: `Sampling(temperature=0)` with `samples=1`.
    The first completion of the first `examples` tasks comes back as text when the scorer is a `protocols.Reader`.
    Raises `ConfigError` without tasks or samples, `DataError` when the generator or the scorer breaks its protocol.
    """
    if not tasks or samples < 1:
        raise ConfigError(f"an evaluation needs tasks and samples, got {len(tasks)} tasks and {samples} samples")
    requests = [
        GroupRequest(task, group_id=i, group_size=samples, seed=(*seed, i), sampling=sampling)
        for i, task in enumerate(tasks)
    ]
    rollouts = concatenate(list(generator.stream(requests)))
    if not np.array_equal(rollouts.group_id, np.repeat(np.arange(len(tasks)), samples)):
        raise DataError(
            f"evaluation: {len(rollouts)} rollouts are not {samples} for each of {len(tasks)} tasks in order"
        )
    scores = _finite_scores(scorer, rollouts, [task for task in tasks for _ in range(samples)])
    correct = (scores.rewards > correct_above).reshape(len(tasks), samples)
    return Evaluation(
        correct=correct.sum(axis=1, dtype=np.int64),
        samples=samples,
        mean_length=float(rollouts.completion_lengths.mean()),
        truncated_fraction=float(rollouts.truncated.mean()),
        unscored=scores.timeouts + scores.crashes,
        examples=_examples(scorer, rollouts, tasks[:examples], correct[:examples, 0]),
    )


def _examples(
    scorer: Scorer, rollouts: Rollouts, tasks: Sequence[Task], correct: NDArray[np.bool_]
) -> tuple[Example, ...]:
    if not isinstance(scorer, Reader) or not tasks:
        return ()
    first = np.searchsorted(rollouts.group_id, np.arange(len(tasks)))
    texts = scorer.texts(rollouts.select(first))
    return tuple(
        Example(task.prompt, task.answer, text, bool(right))
        for task, text, right in zip(tasks, texts, correct, strict=True)
    )


def _finite_scores(scorer: Scorer, rollouts: Rollouts, tasks: Sequence[Task]) -> Scores:
    try:
        scores = scores_of(scorer, rollouts, tasks)
        rewards = np.asarray(scores.rewards, np.float64)
    except OstinatoError:
        raise
    except Exception as error:
        what = f"{len(tasks)} completions, the first for the prompt {tasks[0].prompt[:60]!r}"
        raise DataError(f"evaluation: the scorer failed on {what}: {type(error).__name__}: {error}") from error
    if rewards.shape != (len(rollouts),):
        raise DataError(f"evaluation: the scorer returned shape {rewards.shape}, expected ({len(rollouts)},)")
    if not np.all(np.isfinite(rewards)):
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise DataError(f"evaluation: the scorer returned {rewards[row]} for the prompt {tasks[row].prompt[:60]!r}")
    return Scores(rewards, scores.timeouts, scores.crashes)
