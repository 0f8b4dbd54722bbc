"""Evaluation through the protocols alone: a generator that copies its seed, a scorer that reads the completion."""

from dataclasses import replace

import numpy as np
import pytest

from ostinato.config import EvaluationConfig
from ostinato.errors import ConfigError, DataError, RunError
from ostinato.evaluation import Evaluation, Example, evaluate, held_out
from ostinato.protocols import Sampling, Task
from ostinato.rollouts import Rollouts

GREEDY = Sampling(temperature=0)


class CountingGenerator:
    """Completion j of task i is j + 1 tokens long and says whether j < i, so task i has i correct completions."""

    def __init__(self) -> None:
        self.requests = []

    def load(self, weights, version):
        raise AssertionError("evaluation must not exchange weights")

    def stream(self, requests):
        self.requests += requests
        for request in requests:
            task, rows = int(request.task.answer), range(request.group_size)
            completions = [[int(j < task)] * (j + 1) for j in rows]
            yield Rollouts.from_completions(
                [[7]] * len(rows),
                completions,
                [[0.0] * len(c) for c in completions],
                group_id=request.group_id,
                truncated=[j == 3 for j in rows],
            )


class LastTokenScorer:
    """The reward is the last token."""

    def score(self, rollouts, tasks):
        assert [task.answer for task in tasks] == [str(i) for i in rollouts.group_id]
        return rollouts.tokens[rollouts.offsets[1:] - 1].astype(np.float64)


def tasks(m):
    return [Task(prompt=f"prompt {i}", answer=str(i), prompt_id=i, source="fake") for i in range(m)]


def run(generator=None, scorer=None, m=5, samples=4, **options):
    generator, scorer = generator or CountingGenerator(), scorer or LastTokenScorer()
    return evaluate(generator, scorer, tasks(m), sampling=Sampling(), samples=samples, seed=(9, 2), **options)


def test_evaluate_counts_correct_completions_of_each_task():
    result = run()
    assert result.correct.tolist() == [0, 1, 2, 3, 4]
    assert result.accuracy == 0.5
    assert result.mean_length == (1 + 2 + 3 + 4) / 4
    assert result.truncated_fraction == 0.25


def test_evaluate_gives_unbiased_pass_at_k_over_tasks():
    # Of 4 samples with 0..4 correct, two draws fail with chance 1, 1/2, 1/6, 0, 0.
    assert run().pass_at(2) == pytest.approx(1 - (1 + 1 / 2 + 1 / 6) / 5)
    assert run().pass_at(1) == run().accuracy


def test_standard_error_is_over_prompts_not_completions():
    shares = np.array([0, 0.25, 0.5, 0.75, 1])
    assert run().standard_error == pytest.approx(np.sqrt(shares.var(ddof=1) / 5))
    assert np.isnan(Evaluation(np.array([1]), 1, 1.0, 0.0).standard_error)


def test_evaluate_gives_every_task_its_own_stream_and_the_settings_it_was_given():
    generator = CountingGenerator()
    evaluate(generator, LastTokenScorer(), tasks(3), sampling=GREEDY, samples=1, seed=(9, 2))
    assert [r.seed for r in generator.requests] == [(9, 2, 0), (9, 2, 1), (9, 2, 2)]
    assert {(r.group_size, r.sampling.temperature) for r in generator.requests} == {(1, 0)}


def test_evaluate_applies_the_threshold_strictly():
    assert run(correct_above=0.999).accuracy == 0.5
    assert run(correct_above=1.0).accuracy == 0


@pytest.mark.parametrize(("m", "samples"), [(0, 1), (1, 0)])
def test_evaluate_is_refused_when_there_is_nothing_to_do(m, samples):
    with pytest.raises(ConfigError, match=f"{m} tasks and {samples} samples"):
        run(m=m, samples=samples)


def test_evaluate_names_the_prompt_when_the_scorer_returns_nan():
    class NanScorer:
        def score(self, rollouts, tasks):
            return np.where(rollouts.group_id == 2, np.nan, 1.0)

    with pytest.raises(DataError, match="returned nan for the prompt 'prompt 2'"):
        run(scorer=NanScorer())


def test_evaluate_is_an_error_when_the_scorer_returns_another_shape():
    class ShortScorer:
        def score(self, rollouts, tasks):
            return np.zeros(3)

    with pytest.raises(DataError, match=r"shape \(3,\), expected \(20,\)"):
        run(scorer=ShortScorer())


def test_evaluate_is_an_error_when_groups_are_missing():
    class LazyGenerator(CountingGenerator):
        def stream(self, requests):
            return super().stream(requests[:-1])

    with pytest.raises(DataError, match="16 rollouts are not 4 for each of 5 tasks"):
        run(generator=LazyGenerator())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"returned shape \(\), expected \(20,\)"),
        (
            ["right"] * 20,
            "failed on 20 completions, the first for the prompt 'prompt 0': ValueError: could not convert",
        ),
        ([[0.0]] * 20, r"returned shape \(20, 1\), expected \(20,\)"),
    ],
)
def test_evaluate_is_an_error_when_the_scorer_returns_no_numbers(returned, message):
    class OddScorer:
        def score(self, rollouts, tasks):
            return returned

    with pytest.raises(DataError, match=f"evaluation: the scorer {message}"):
        run(scorer=OddScorer())


def test_evaluate_takes_rewards_in_a_list():
    class ListScorer(LastTokenScorer):
        def score(self, rollouts, tasks):
            return super().score(rollouts, tasks).tolist()

    assert run(scorer=ListScorer()).correct.tolist() == [0, 1, 2, 3, 4]


def test_evaluate_says_where_the_scorer_raised_and_lets_our_own_errors_pass():
    class RaisingScorer:
        def __init__(self, error):
            self.error = error

        def score(self, rollouts, tasks):
            raise self.error

    where = "the scorer failed on 20 completions, the first for the prompt 'prompt 0': KeyError: 'gold'"
    with pytest.raises(DataError, match=where) as caught:
        run(scorer=RaisingScorer(KeyError("gold")))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RunError, match=r"^the judge is gone$"):
        run(scorer=RaisingScorer(RunError("the judge is gone")))


class ReadingScorer(LastTokenScorer):
    def texts(self, rollouts):
        return [" ".join(map(str, rollouts.completion(i))) for i in range(len(rollouts))]


def test_evaluate_when_asked_for_examples_tells_the_first_completion_of_the_first_tasks():
    shown = run(scorer=ReadingScorer(), m=3, samples=4, examples=2).examples
    assert shown == (
        Example(prompt="prompt 0", answer="0", completion="0", correct=False),
        Example(prompt="prompt 1", answer="1", completion="1", correct=True),
    )
    assert len(run(scorer=ReadingScorer(), m=3, examples=9).examples) == 3
    assert run(scorer=ReadingScorer()).examples == run(scorer=LastTokenScorer(), examples=2).examples == ()


def test_held_out_when_greedy_is_asked_for_shows_greedy_completions_and_counts_both():
    generator = CountingGenerator()
    config = EvaluationConfig(samples=4, examples=1, temperature=0.7)
    found = held_out(generator, ReadingScorer(), tasks(3), config, max_new_tokens=5, seed=11, point=2).record()
    assert [r.sampling.temperature for r in generator.requests] == [0.7] * 3 + [0.0] * 3
    assert {r.seed for r in generator.requests} == {(11, 3, 2, i) for i in range(3)}
    assert (found["sampled_accuracy"], found["greedy_accuracy"]) == (3 / 12, 2 / 3)
    assert found["pass_at_k"] == {1: 3 / 12, 2: pytest.approx((0.5 + 5 / 6) / 3), 4: 2 / 3}
    assert [one["prompt"] for one in found["examples"]] == ["prompt 0"]
    without = held_out(
        generator,
        ReadingScorer(),
        tasks(3),
        replace(config, greedy=False, examples=0),
        max_new_tokens=5,
        seed=1,
        point=0,
    ).record()
    assert without["greedy_accuracy"] is None and "examples" not in without
