import math

import numpy as np
import pytest

from ostinato.config import TaskConfig
from ostinato.errors import DataError, MissingExtraError
from ostinato.protocols import Task
from ostinato.rollouts import Rollouts
from ostinato.tasks import TextScorer, create


class Verifier:
    """A task set whose verifier returns, or raises, what it is told."""

    name, test = "fake", ()

    def __init__(self, outcome) -> None:
        self.outcome = outcome

    def train(self, index: int) -> Task:
        raise NotImplementedError

    def answer_score(self, task: Task, text: str) -> float:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def decode(tokens) -> str:
    return "".join(map(chr, tokens))


def rollouts(pairs: list[tuple[str, str]]) -> Rollouts:
    prompts, completions = ([[ord(c) for c in text] for text in column] for column in zip(*pairs, strict=True))
    return Rollouts.from_completions(prompts, completions, [[0.0] * len(c) for c in completions])


def test_score_rewards_each_completion_without_its_prompt() -> None:
    tasks = create(TaskConfig(name="add", test_prompts=1))
    sums = [Task(f"{a}+{b}=", str(a + b), 0, "add") for a, b in [(1, 2), (3, 4), (5, 6), (7, 8)]]
    completions = ["3", "8", "", "15"]
    batch = rollouts([(task.prompt, text) for task, text in zip(sums, completions, strict=True)])
    rewards = TextScorer(tasks, decode).score(batch, sums)
    assert rewards.dtype == np.float64
    assert rewards.tolist() == [1, 0, 0, 1]


def test_score_names_prompt_and_completion_when_the_verifier_raises() -> None:
    scorer = TextScorer(Verifier(KeyError("gold")), decode)
    with pytest.raises(
        DataError,
        match=r"raised KeyError: 'gold'; rollout 0 of group 0, prompt '1\+2=', completion '3\\n' \(task add\)",
    ) as e:
        scorer.score(rollouts([("1+2=", "3\n")]), [Task("1+2=", "3", 0, "add")])
    assert isinstance(e.value.__cause__, KeyError)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_score_refuses_when_a_reward_is_not_finite(reward: float) -> None:
    with pytest.raises(
        DataError,
        match=rf"the scorer returned {reward}, expected a finite reward; rollout 0 of group 0, prompt '1\+2='",
    ):
        TextScorer(Verifier(reward), decode).score(rollouts([("1+2=", "")]), [Task("1+2=", "3", 0, "add")])


@pytest.mark.parametrize("reward", [None, "high"])
def test_score_refuses_when_a_reward_is_no_number(reward) -> None:
    with pytest.raises(DataError, match=r"the scorer raised (TypeError|ValueError)"):
        TextScorer(Verifier(reward), decode).score(rollouts([("1+2=", "")]), [Task("1+2=", "3", 0, "add")])


def test_score_shortens_what_it_shows_when_the_completion_is_long() -> None:
    with pytest.raises(DataError) as caught:
        TextScorer(Verifier(math.nan), decode).score(rollouts([("p", "x" * 10000)]), [Task("p", "3", 0, "add")])
    assert len(str(caught.value)) < 250


def test_score_passes_a_missing_package_on() -> None:
    with pytest.raises(MissingExtraError):
        TextScorer(Verifier(MissingExtraError("math-verify", "tasks")), decode).score(
            rollouts([("p", "")]), [Task("p", "3", 0, "add")]
        )


def test_score_refuses_when_tasks_and_rollouts_differ_in_number() -> None:
    with pytest.raises(DataError, match="got 0 tasks for 1 rollouts"):
        TextScorer(Verifier(1.0), decode).score(rollouts([("p", "")]), [])
