import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

from ostinato.config import TaskConfig
from ostinato.errors import ConfigError, DataError, MissingExtraError
from ostinato.tasks import create

datasets = pytest.importorskip("datasets")

ROWS = [{"problem": f"p{i % 20}", "answer": str(i), "level": i % 3, "solution": "long"} for i in range(30)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path: Path) -> None:
    # Read at import, so patched where they are used; the cache stays in the test's directory.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def saved(path: Path, rows: list = ROWS, test: list | None = None) -> str:
    whole = datasets.Dataset.from_list(rows)
    if test is not None:
        whole = datasets.DatasetDict(train=whole, test=datasets.Dataset.from_list(test))
    whole.save_to_disk(path)
    return str(path)


def load(path: str, options: dict | None = None, **settings):
    options = {"prompt_column": "problem"} | (options or {})
    return create(TaskConfig(name=f"hf-dataset:{path}", options=options, **{"test_prompts": 4, **settings}))


def test_test_prompts_are_held_out_with_all_their_repetitions(tmp_path: Path) -> None:
    path = saved(tmp_path / "d")
    for seed in range(5):
        tasks = load(path, seed=seed)
        held_out = {task.prompt for task in tasks.test}
        rest = Counter(row["problem"] for row in ROWS if row["problem"] not in held_out)
        count = sum(rest.values())
        assert len(held_out) == 4
        assert Counter(tasks.train(i).prompt for i in range(count)) == rest
        assert [tasks.train(i) for i in range(count)] != [tasks.train(count + i) for i in range(count)]
        # Of a repeated prompt the first row's answer stands in the test set.
        assert all(task.answer == task.prompt[1:] for task in tasks.test)
    assert load(path).test == load(path).test
    assert load(path).train(11) == load(path).train(11)


def test_a_test_split_gives_the_test_prompts_and_training_avoids_them(tmp_path: Path) -> None:
    test = [{"problem": f"p{i}", "answer": "t", "level": 0, "solution": ""} for i in (3, 50, 51, 3)]
    tasks = load(saved(tmp_path / "d", test=test), {"test_split": "test"}, test_prompts=3)
    assert {(task.prompt, task.answer) for task in tasks.test} == {("p3", "t"), ("p50", "t"), ("p51", "t")}
    assert {tasks.train(i).prompt for i in range(28)} == {f"p{i}" for i in range(20)} - {"p3"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_files_hold_the_same_tasks_as_a_saved_data_set(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows.{suffix}"
    rows = datasets.Dataset.from_list(ROWS)
    {"jsonl": rows.to_json, "parquet": rows.to_parquet, "csv": lambda p: rows.to_csv(p, index=False)}[suffix](str(file))
    expected = load(saved(tmp_path / "d"))
    tasks = load(str(file))
    assert [(t.prompt, t.answer, t.prompt_id) for t in tasks.test] == [
        (t.prompt, t.answer, t.prompt_id) for t in expected.test
    ]
    assert [tasks.train(i).prompt for i in range(50)] == [expected.train(i).prompt for i in range(50)]


def test_a_directory_of_files_is_a_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "test.jsonl").write_text(json.dumps({**ROWS[0], "problem": "new"}) + "\n")
    tasks = load(str(folder), {"test_split": "test"}, test_prompts=1)
    assert [task.prompt for task in tasks.test] == ["new"]


def test_details_are_the_columns_asked_for_and_no_others(tmp_path: Path) -> None:
    task = load(saved(tmp_path / "d"), {"detail_columns": ["level"]}).train(0)
    assert task.details == {"level": int(task.answer) % 3}
    assert load(saved(tmp_path / "e"), {"answer_column": "", "detail_columns": ["solution"]}).train(0).answer == ""


def test_scoring_is_the_one_asked_for(tmp_path: Path) -> None:
    tasks = load(saved(tmp_path / "d"), scoring="last-number")
    task = tasks.train(0)
    assert tasks.answer_score(task, f"it is {task.answer}") == 1
    assert tasks.open_verifier()(task, f"it is {task.answer}9") == 0


def test_rows_that_cannot_be_used_are_named_or_dropped(tmp_path: Path) -> None:
    rows = [*ROWS, {**ROWS[0], "problem": ""}, {**ROWS[0], "answer": None}, {**ROWS[0], "answer": "  "}]
    path = saved(tmp_path / "d", rows)
    with pytest.raises(
        DataError, match=r"3 of 33 rows have no usable prompt or answer, the first is row 30 with problem"
    ):
        load(path)
    tasks = load(path, {"drop_unusable": True})
    assert tasks.dropped == 3
    assert {tasks.train(i).answer for i in range(200)} <= {str(i) for i in range(30)}
    words = saved(tmp_path / "e", [*ROWS, {**ROWS[0], "answer": "twelve"}])
    with pytest.raises(DataError, match=r"1 of 31 rows .* answer = 'twelve'; task\.options\.drop_unusable = true"):
        load(words, scoring="numeric")


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"prompt_column": "question"}, {}, "no column 'question'; it has problem, answer, level, solution"),
        ({"detail_columns": ["proof"]}, {}, "no column 'proof'"),
        ({"split": "dev"}, {}, "has no split 'dev'; it has train, test"),
        ({"columns": "x"}, {}, "unknown option 'columns' of task"),
        ({"detail_columns": "level"}, {}, "detail_columns must be a list of column names, got 'level'"),
        ({"drop_unusable": 1}, {}, "drop_unusable must be of type bool, got 1"),
        ({}, {"test_prompts": 21}, "offers 20 distinct test prompts and then 0 training rows"),
        ({}, {"file": "x.jsonl"}, "belongs to task.name = jsonl"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, options: dict, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(saved(tmp_path / "d", test=ROWS[:1]), options, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["nobody/nothing", "rows.txt"])
def test_what_is_not_there_is_refused_in_one_line(tmp_path: Path, path: str, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.txt").write_text("a")
    with pytest.raises(ConfigError, match=r"cannot be loaded: |must end in one of \.json, \.jsonl") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_the_extra_is_named_when_the_package_is_absent(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="datasets is not installed"):
        load("anything")
