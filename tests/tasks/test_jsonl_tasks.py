import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

from ostinato.config import TaskConfig
from ostinato.errors import ConfigError, DataError, MissingExtraError
from ostinato.tasks import create
from ostinato.tasks.jsonl import JsonlTasks


def write(path: Path, records: list) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def load(path: Path, **settings) -> JsonlTasks:
    return JsonlTasks(path, **{"scoring": "exact", "test_prompts": 2, "seed": 0, **settings})


def test_split_is_by_prompt_when_prompts_repeat(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"prompt": f"p{i % 10}", "answer": str(i)} for i in range(30)])
    for seed in range(20):
        tasks = load(path, seed=seed, test_prompts=3)
        test, epoch = {t.prompt for t in tasks.test}, [tasks.train(i).prompt for i in range(21)]
        assert len(test) == 3
        assert Counter(epoch) == {f"p{i}": 3 for i in range(10) if f"p{i}" not in test}
    assert load(path).test == load(path).test
    assert any(load(path, seed=seed).test != load(path).test for seed in range(1, 5))


def test_test_set_keeps_the_first_answer_when_a_prompt_repeats(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"prompt": f"p{i % 3}", "answer": str(i)} for i in range(6)])
    assert sorted((t.prompt, t.answer) for t in load(path).test) in (
        [("p0", "0"), ("p1", "1")],
        [("p0", "0"), ("p2", "2")],
        [("p1", "1"), ("p2", "2")],
    )


def test_train_visits_every_line_once_an_epoch_in_a_new_order(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"prompt": f"p{i}", "answer": "a"} for i in range(22)])
    tasks = load(path)
    first, second = ([tasks.train(e * 20 + i).prompt for i in range(20)] for e in range(2))
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 20
    assert first != second
    assert load(path).train(33) == tasks.train(33)


def test_given_split_is_kept_when_every_line_has_one(tmp_path: Path) -> None:
    records = [{"question": f"q{i}", "answer": i, "split": "test" if i < 4 else "train", "more": 1} for i in range(9)]
    tasks = load(write(tmp_path / "t.jsonl", records), test_prompts=3)
    assert {t.prompt for t in tasks.test} < {"q0", "q1", "q2", "q3"}
    assert {tasks.train(i).prompt for i in range(5)} == {"q4", "q5", "q6", "q7", "q8"}
    assert {t.answer for t in tasks.test} < {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("scoring", "text", "reward"),
    [("exact", "0.5", 0), ("numeric", "0.5", 1), ("numeric", "it is 0.5", 0), ("last-number", "it is 0.5", 1)],
)
def test_scoring_is_the_one_asked_for(tmp_path: Path, scoring: str, text: str, reward: int) -> None:
    path = write(tmp_path / "t.jsonl", [{"prompt": f"half {i}", "answer": "1/2"} for i in range(3)])
    tasks = create(TaskConfig(name="jsonl", file=str(path), scoring=scoring, test_prompts=1))
    assert tasks.answer_score(tasks.train(0), text) == reward


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "ans', 'expected one JSON object a line, got \'{"prompt": "a", "ans\''),
        ("\x80", "expected one JSON object a line"),
        ("[" * 100000, "expected one JSON object a line"),
        ("[1, 2]", r"expected a JSON object, got \[1, 2\]"),
        ('{"answer": "1"}', "expected one non-empty string under 'prompt' or 'question'"),
        ('{"prompt": 3, "answer": "1"}', "expected one non-empty string under 'prompt' or 'question'"),
        ('{"prompt": "a", "question": "b", "answer": "1"}', "expected one non-empty string under"),
        ('{"prompt": "a"}', "expected a string or a finite number under 'answer'"),
        ('{"prompt": "a", "answer": true}', "expected a string or a finite number under 'answer'"),
        ('{"prompt": "a", "answer": NaN}', "expected a string or a finite number under 'answer'"),
        ('{"prompt": "a", "answer": -Infinity}', "expected a string or a finite number under 'answer'"),
        ('{"prompt": "a", "answer": 1' + "0" * 400 + "}", "expected a number under 'answer' for this scoring, got '10"),
        ('{"prompt": "a", "answer": 1' + "0" * 9000 + "}", "expected one JSON object a line, got .* integer string"),
        (r'{"prompt": "a\ud800", "answer": "1"}', r"expected Unicode text, got a lone surrogate in 'a\\ud800'"),
        (r'{"prompt": "a", "answer": "\udfff1"}', r"expected Unicode text, got a lone surrogate in '\\udfff1'"),
        ('{"prompt": "a", "answer": "1", "split": "dev"}', "expected 'train' or 'test' under 'split', got 'dev'"),
        ('{"prompt": "a", "answer": "1", "split": "train"}', "'split' must stand on every line or on none; line 1"),
        ('{"prompt": "a", "answer": "one"}', "expected a number under 'answer' for this scoring, got 'one'"),
    ],
)
def test_load_names_file_and_line_when_a_line_is_broken(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"prompt": "p", "answer": "1"}\n\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(DataError, match=rf"t\.jsonl:3: {message}") as caught:
        load(path, scoring="numeric")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_load_keeps_every_digit_of_a_long_integer_and_paired_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": "a\\ud83d\\ude00", "answer": 1' + "0" * 400 + '}\n{"prompt": "b", "answer": "1"}\n')
    tasks = load(path, test_prompts=1)
    assert {(t.prompt, t.answer) for t in (*tasks.test, tasks.train(0))} == {
        ("a\N{GRINNING FACE}", "1" + "0" * 400),
        ("b", "1"),
    }


def test_load_refuses_when_a_prompt_stands_in_both_splits(tmp_path: Path) -> None:
    records = [{"prompt": p, "answer": "1", "split": s} for p, s in [("a", "test"), ("b", "train"), ("a", "train")]]
    with pytest.raises(DataError, match=r"t\.jsonl:3: this prompt is in the train split here and in test at line 1"):
        load(write(tmp_path / "t.jsonl", records))


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_load_refuses_when_there_are_too_few_prompts(tmp_path: Path, lines: int) -> None:
    path = write(tmp_path / "t.jsonl", [{"prompt": f"p{i}", "answer": "1"} for i in range(lines)])
    with pytest.raises(ConfigError, match=rf"offers {lines} distinct test prompts and then 0 training lines"):
        load(path)


def test_load_refuses_when_the_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.file .*none\.jsonl cannot be read: No such file or directory"):
        load(tmp_path / "none.jsonl")


def test_load_names_the_line_when_math_verify_could_not_read_its_answer(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    path = write(tmp_path / "t.jsonl", [{"prompt": f"p{i}", "answer": "$$" if i == 3 else "7"} for i in range(6)])
    with pytest.raises(DataError, match=r"t.jsonl:4: expected mathematics under 'answer' for this scoring, got '\$\$'"):
        load(path, scoring="math-verify")


def test_load_names_the_extra_when_math_verify_is_not_installed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="math-verify is not installed"):
        load(tmp_path / "t.jsonl", scoring="math-verify")
