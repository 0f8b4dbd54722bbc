from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.config import TaskConfig
from ostinato.errors import ConfigError
from ostinato.protocols import Task
from ostinato.tasks import create, prompt_id
from ostinato.tasks.arithmetic import Add, Sort, WordSum
from ostinato.tasks.task_set import ProceduralTasks

# The first training prompts at seed 0; they must never change, for runs would.
FIRST = {
    "sort": [("5895382980=", "0235588899"), ("6882924973=", "2234678899")],
    "add": [("589+538=", "1127"), ("688+292=", "980")],
    "words": [
        ("What is 26 plus 44? Answer with the number only.", "70"),
        ("What is 34 plus 42? Answer with the number only.", "76"),
    ],
    "countdown": [("14,23,25>62=", "25+23+14"), ("17,22,21>18=", "22-(21-17)")],
}


def task(prompt: str, answer: str) -> Task:
    return Task(prompt, answer, prompt_id(prompt), "test")


def test_prompt_id_is_a_fixed_63_bit_number() -> None:
    assert prompt_id("3141592653=") == 8611838525617572399
    assert 0 <= prompt_id("\ud800") < 2**63


@pytest.mark.parametrize("name", FIRST)
def test_train_repeats_itself_in_every_process(name: str) -> None:
    tasks = create(TaskConfig(name=name))
    assert [(t.prompt, t.answer) for t in map(tasks.train, range(2))] == FIRST[name]


@pytest.mark.parametrize("name", FIRST)
def test_train_depends_on_the_index_alone(name: str) -> None:
    one, other = (create(TaskConfig(name=name, test_prompts=20)) for _ in range(2))
    assert one.test == other.test
    assert [one.train(i) for i in range(30)] == [other.train(i) for i in reversed(range(30))][::-1]
    assert create(TaskConfig(name=name, test_prompts=20, seed=1)).test != one.test


@pytest.mark.parametrize("name", FIRST)
def test_gold_answer_earns_1_and_anything_less_0(name: str) -> None:
    tasks = create(TaskConfig(name=name, test_prompts=64))
    for item in tasks.test:
        assert tasks.answer_score(item, item.answer) == 1
        assert tasks.answer_score(item, "") == 0
        assert item.source == tasks.name == name


@pytest.mark.parametrize(
    ("name", "options", "test_prompts"),
    [
        ("sort", {"digits": 2}, 60),
        ("add", {"digits": 1}, 60),
        ("words", {"low": 1, "high": 11}, 60),
        ("countdown", {"numbers": 2, "max_number": 9}, 60),
    ],
)
def test_no_test_prompt_is_trained_on_when_prompts_are_few(name: str, options: dict, test_prompts: int) -> None:
    tasks = create(TaskConfig(name=name, options=options, test_prompts=test_prompts))
    held_out = {t.prompt for t in tasks.test}
    trained = Counter(tasks.train(i).prompt for i in range(500))
    assert len(held_out) == test_prompts
    assert not held_out & set(trained)
    if name in ("sort", "add", "words"):  # 100 prompts: the other 40 are all met
        assert len(trained) == 40


@pytest.mark.parametrize("test_prompts", [10, 200])
def test_create_refuses_when_the_test_set_leaves_too_little(test_prompts: int) -> None:
    config = TaskConfig(name="sort", options={"digits": 1}, test_prompts=test_prompts)
    with pytest.raises(ConfigError, match=r"task 'sort' has too few distinct prompts .* lower task.test_prompts"):
        create(config)


def test_create_refuses_when_every_prompt_is_held_out() -> None:
    class TwoPrompts:
        def propose(self, split: int, index: int, attempt: int) -> Task:
            return task(f"prompt {(index + attempt) % 2}", "")

        def score(self, task: Task, text: str) -> float:
            return 0.0

    assert ProceduralTasks("two", TwoPrompts(), 1).train(6).prompt == "prompt 1"
    with pytest.raises(ConfigError, match=r"too few distinct prompts .* \(2 held out\)"):
        ProceduralTasks("two", TwoPrompts(), 2)


def test_lengths_span_the_bounds_when_min_digits_is_set() -> None:
    sort = Sort.from_options({"digits": 4, "min_digits": 2})
    rng = np.random.default_rng(0)
    lengths = Counter(len(sort.make(rng)[1]) for _ in range(300))
    assert set(lengths) == {2, 3, 4}
    assert min(lengths.values()) > 70  # uniform: 100 each, standard deviation 8
    numbers = Add.from_options({"digits": 3, "min_digits": 3}).make(rng)[0].rstrip("=").split("+")
    assert all(100 <= int(number) <= 999 for number in numbers)


@given(st.text("0123456789", min_size=1, max_size=20), st.text("0123456789", max_size=20))
def test_sort_verifier_agrees_with_counting_digits(digits: str, text: str) -> None:
    answer = "".join(sorted(digits))
    item, sort = task(digits + "=", answer), Sort(20, 1)
    ascending = all(a <= b for a, b in pairwise(text))
    assert sort.score(item, text) == float(ascending and Counter(text) == Counter(digits))
    assert sort.score(item, answer) == 1


@given(st.integers(1, 5), st.integers(1, 64), st.integers(0, 2**32), st.integers(-3, 3))
def test_add_verifier_accepts_the_sum_alone(terms: int, digits: int, seed: int, error: int) -> None:
    add = Add(max(terms, 2), digits, 1)
    prompt, answer = add.make(np.random.default_rng(seed))
    total = 0
    for number in prompt.removesuffix("=").split("+"):
        total += int(number)
    assert add.score(task(prompt, answer), str(total + error)) == float(error == 0)


@given(st.integers(0, 2**32))
def test_words_asks_for_two_numbers_below_the_bound(seed: int) -> None:
    prompt, answer = WordSum(1, 50).make(np.random.default_rng(seed))
    a, b = (int(word) for word in prompt.replace("?", "").split() if word.isdigit())
    assert 1 <= a < 50
    assert 1 <= b < 50
    assert WordSum(1, 50).score(task(prompt, answer), f"{a} plus {b} is {a + b}.") == 1
    assert prompt == f"What is {a} plus {b}? Answer with the number only."


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sort", {"digit": 3}, "task.options: unknown option 'digit' of task 'sort'; did you mean 'digits'"),
        ("sort", {"digits": 65}, "task.options.digits of task 'sort' must be an integer between 1 and 64, got 65"),
        ("sort", {"digits": "ten"}, "task.options.digits of task 'sort' must be an integer .* got 'ten'"),
        ("sort", {"digits": True}, "must be an integer between 1 and 64, got True"),
        ("sort", {"digits": 3, "min_digits": 4}, "min_digits 4 must not exceed digits 3"),
        ("add", {"terms": 1}, "task.options.terms of task 'add' must be an integer between 2 and 16, got 1"),
        ("words", {"low": 5, "high": 5}, "low 5 must be below high 5"),
        ("countdown", {"number": 3}, "unknown option 'number' of task 'countdown'; did you mean 'numbers'"),
        ("countdown", {"max_number": 1000}, "max_number 1000 must not exceed max_target 999"),
        ("jsonl", {"digits": 3}, "unknown option 'digits' of task 'jsonl'; it takes no options"),
        ("srot", {}, "task.name: unknown task 'srot'; did you mean 'sort'"),
        ("toy", {}, "task.name = toy has no prompts in text; it goes together with model.backend = toy"),
    ],
)
def test_create_refuses_in_one_line_when_a_setting_is_wrong(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        create(TaskConfig(name=name, options=options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"file": "a.jsonl"}, "task.file = 'a.jsonl' belongs to task.name = jsonl, got task.name = 'sort'"),
        ({"scoring": "numeric"}, "task.scoring = 'numeric' belongs to task.name = jsonl, hf-dataset or reasoning"),
    ],
)
def test_create_refuses_when_a_setting_belongs_to_another_task(setting: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create(TaskConfig(name="sort", **setting))
