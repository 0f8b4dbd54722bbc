import importlib.util

import pytest

from ostinato.config import TaskConfig
from ostinato.errors import ConfigError, MissingExtraError
from ostinato.tasks import create
from ostinato.tasks.reasoning import CHUNK, extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 42\n", "42"),
        ("so <answer> 42 </answer>.", "42"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>42", "42"),
        ("42</answer>", "42</answer>"),
        ("", ""),
    ],
)
def test_extract_answer_takes_the_last_tag_when_there_is_one(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize("dataset", ["chain_sum", "gsm_symbolic", "letter_counting"])
def test_gold_answers_earn_1_on_both_sides_of_a_chunk(dataset: str) -> None:
    pytest.importorskip("reasoning_gym")
    tasks = create(TaskConfig(name=f"reasoning-gym:{dataset}", test_prompts=8))
    for index in (0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 5):
        task = tasks.train(index)
        assert tasks.answer_score(task, f"I think <answer>{task.answer}</answer>") == 1
        assert tasks.answer_score(task, "") == 0
    again = create(TaskConfig(name=f"reasoning-gym:{dataset}", test_prompts=8))
    assert again.train(CHUNK) == tasks.train(CHUNK)
    assert again.test == tasks.test


def test_no_test_prompt_is_trained_on_when_the_data_set_is_small() -> None:
    pytest.importorskip("reasoning_gym")
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # a+b, a-b with a, b of one digit
    tasks = create(TaskConfig(name="reasoning-gym:chain_sum", options=options, test_prompts=80))
    held_out = {task.prompt for task in tasks.test}
    trained = {tasks.train(i).prompt for i in range(400)}
    assert len(held_out) == 80
    assert len(trained) > 40
    assert not held_out & trained


def test_partial_credit_of_the_package_is_kept() -> None:
    pytest.importorskip("reasoning_gym")
    tasks = create(TaskConfig(name="reasoning-gym:chain_sum", test_prompts=1))
    task = tasks.train(0)
    wordy = f"it is {task.answer}"
    assert tasks.answer_score(task, wordy) == pytest.approx(len(task.answer) / len(wordy))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chain_sums", {}, "unknown reasoning-gym data set 'chain_sums'; did you mean 'reasoning-gym:chain_sum'"),
        ("composite", {}, "unknown reasoning-gym data set 'composite'"),
        ("chain_sum", {"min_term": 2}, "unknown option 'min_term' of task 'reasoning-gym:chain_sum'; .* 'min_terms'"),
        ("chain_sum", {"size": 2}, "unknown option 'size'"),
        ("chain_sum", {"min_terms": 9}, "task.options of 'reasoning-gym:chain_sum' are refused by the data set: "),
        ("chain_sum", {"min_terms": "two"}, "are refused by the data set: "),
    ],
)
def test_create_refuses_in_one_line_when_name_or_option_is_wrong(name: str, options: dict, message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ConfigError, match=message) as caught:
        create(TaskConfig(name=f"reasoning-gym:{name}", options=options))
    assert "\n" not in str(caught.value)


def test_create_names_the_extra_when_not_installed(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"reasoning-gym is not installed; .*'ostinato\[tasks\]'"):
        create(TaskConfig(name="reasoning-gym:chain_sum"))
