import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from ostinato.config import TaskConfig
from ostinato.errors import ConfigError, DataError
from ostinato.protocols import Task
from ostinato.rollouts import Rollouts
from ostinato.tasks import create, create_scorer, load_scorer
from ostinato.tasks.create import score_workers

ODD = f"{Path(__file__).parent / 'odd_scorers.py'}"
TASK = Task("what?", "42", 0, "mine", {"level": 3})


def decode(tokens) -> str:
    return "".join(map(chr, tokens))


def rollouts(*completions: str) -> Rollouts:
    coded = [[ord(c) for c in text] for text in completions]
    return Rollouts.from_completions([[1]] * len(coded), coded, [[0.0] * len(c) for c in coded], group_id=7)


def test_a_scorer_gets_what_it_asks_for_by_name() -> None:
    assert load_scorer(f"{ODD}:named")(TASK, "42") == 1
    assert load_scorer(f"{ODD}:named")(TASK, "41") == 0
    assert load_scorer(f"{ODD}:everything")(TASK, "41") == 1


def test_a_module_is_found_in_the_working_directory(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_rewards.py").write_text("def half(completion):\n    return len(completion) / 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    assert load_scorer("my_rewards:half")(TASK, "abc") == 1.5
    sys.modules.pop("my_rewards")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rewards", "expects 'module:function' or 'file.py:function', got 'rewards'"),
        ("rewards:", "expects 'module:function'"),
        ("absent.py:f", r"absent\.py is no file \(looked for from /"),
        ("no_such_module:f", "importing no_such_module raised ModuleNotFoundError"),
        (f"{ODD}:name", "has no function 'name'; it has measured, named, everything"),
        (f"{ODD}:later", "is a coroutine function, expected a plain one"),
        (
            f"{ODD}:batched",
            r"must take keywords among prompt, completion, answer, details, got \(completions: list, pr",
        ),
        (f"{ODD}:positional", r"must take keywords among .* got \(completion: str\)"),
    ],
)
def test_a_scorer_that_cannot_be_used_is_refused_in_one_line(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        create(TaskConfig(name="add", test_prompts=1, scorer=path))
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import absent_package\n")
    with pytest.raises(ConfigError, match=r"importing .*broken\.py raised ModuleNotFoundError: No module named"):
        load_scorer(f"{tmp_path / 'broken.py'}:f")


@pytest.mark.parametrize("workers", [0, 2])
def test_rewards_are_the_same_here_and_in_processes(workers: int) -> None:
    config = TaskConfig(name="add", test_prompts=1, scorer=f"{ODD}:measured", score_workers=workers)
    scorer = create_scorer(config, create(config), decode)
    texts = ["x" * i for i in range(20)]
    rewards = scorer.score(rollouts(*texts), [TASK] * 20)
    assert rewards.dtype == np.float64
    assert rewards.tolist() == [i / 100 for i in range(20)]
    with pytest.raises(
        DataError,
        match=r"the scorer raised KeyError: 'gold'; rollout 1 of group 7, prompt 'what\?', completion 'raise gold'",
    ):
        scorer.score(rollouts("fine", "raise gold", "raise more"), [TASK] * 3)
    with pytest.raises(DataError, match=r"the scorer returned nan, expected a finite reward; rollout 0 of group 7"):
        scorer.score(rollouts("nan"), [TASK])
    scorer.close()


def test_what_could_not_be_scored_has_no_reward_and_is_counted() -> None:
    config = TaskConfig(name="add", test_prompts=1, scorer=f"{ODD}:measured", score_timeout_s=2.0)
    scorer = create_scorer(config, create(config), decode)
    scores = scorer.score_counted(rollouts("die", "fine", "hang", "exit"), [TASK] * 4)
    assert scores.rewards.tolist() == [0, 0.04, 0, 0]
    assert (scores.timeouts, scores.crashes) == (1, 2)
    scorer.close()


def test_a_reward_that_is_no_number_is_an_error() -> None:
    config = TaskConfig(name="add", test_prompts=1, scorer=f"{ODD}:textual", score_workers=0)
    with pytest.raises(DataError, match="the scorer raised ValueError: could not convert string to float: 'high'"):
        create_scorer(config, create(config), decode).score(rollouts("fine"), [TASK])


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        ({"name": "add"}, 0),
        ({"name": "jsonl", "scoring": "last-number"}, 0),
        ({"name": "jsonl", "scoring": "math-verify"}, 2),
        ({"name": "reasoning-gym:chain_sum"}, 2),
        ({"name": "add", "scorer": "a:b"}, 2),
        ({"name": "add", "score_workers": 3}, 3),
        ({"name": "reasoning-gym:chain_sum", "score_workers": 0}, 0),
    ],
)
def test_what_may_hang_is_scored_in_processes(settings: dict, workers: int) -> None:
    assert score_workers(TaskConfig(**settings)) == workers


def test_math_verify_is_not_scored_where_nothing_ends_it() -> None:
    with pytest.raises(ConfigError, match="score_workers = 0: nothing would end a completion"):
        score_workers(TaskConfig(name="jsonl", scoring="math-verify", score_workers=0))


def test_scorer_and_scoring_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"task\.scorer 'a:b' and task\.scoring = numeric: set one of them"):
        create(TaskConfig(name="jsonl", file="x.jsonl", scoring="numeric", scorer="a:b"))


def test_a_suffix_ends_every_prompt_and_its_identity_follows() -> None:
    plain = create(TaskConfig(name="add", test_prompts=5))
    suffixed = create(TaskConfig(name="add", test_prompts=5, prompt_suffix=" Number only."))
    assert [task.prompt for task in suffixed.test] == [task.prompt + " Number only." for task in plain.test]
    assert suffixed.train(3).prompt == plain.train(3).prompt + " Number only."
    ids = {task.prompt_id for task in suffixed.test}
    assert len(ids) == 5 and not ids & {task.prompt_id for task in plain.test}
    assert suffixed.answer_score(suffixed.test[0], suffixed.test[0].answer) == 1
