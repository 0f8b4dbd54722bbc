"""What the policy said before and after."""

from test_page import make_comparison, make_run

from ostinato.report import write_report
from ostinato.report.examples import before_and_after
from ostinato.telemetry import JsonlWriter


def evaluation(*completions, train_step=9):
    examples = [
        {"prompt": f"<{i}> and", "answer": str(i), "completion": text, "correct": text == str(i)}
        for i, text in enumerate(completions)
    ]
    return {"event": "evaluation", "train_step": train_step, "examples": examples}


def test_examples_when_runs_have_them_stand_side_by_side():
    runs = {
        "none": [{"event": "step"}, {"event": "evaluation"}],
        "baseline": [evaluation("a", "b", train_step=0), evaluation("0", "b")],
        "replay": [evaluation("other", "b", train_step=0), evaluation("c", "b"), evaluation("0", "1")],
    }
    first, second = before_and_after(runs)
    assert (first["prompt"], first["answer"]) == ("<0> and", "0")
    assert {label: cell["text"] for label, cell in first["cells"].items()} == {
        "before training": "a",
        "baseline": "0",
        "replay": "0",
    }
    assert [cell["correct"] for cell in second["cells"].values()] == [False, False, True]
    assert before_and_after({"none": runs["none"]}) == before_and_after({}) == []


def test_examples_when_they_are_long_or_unequal_in_number_are_cut():
    (row,) = before_and_after({"a": [evaluation("x" * 601)], "b": [evaluation("y", "z")]})
    assert {label: cell["text"] for label, cell in row["cells"].items()} == {"a": "x" * 600 + " …", "b": "y"}


def test_examples_when_nothing_was_trained_are_those_before_alone():
    (row,) = before_and_after({"after": [evaluation("x", train_step=0)]})
    assert [*row["cells"]] == ["before training"]
    assert before_and_after({"after": [{"event": "evaluation", "train_step": 0}]}) == []


def test_page_when_a_run_has_examples_shows_them_escaped(tmp_path):
    make_run(tmp_path)
    writer = JsonlWriter(tmp_path / "metrics.jsonl", keep_bytes=(tmp_path / "metrics.jsonl").stat().st_size)
    for record in (evaluation("wrong <b>", train_step=0), evaluation("0")):
        writer.write(record | {"sampled_accuracy": 0.5, "greedy_accuracy": 0.5, "compute": 200.0})
    writer.close()
    page = write_report(tmp_path).read_text()
    assert (
        '<tr><td>&lt;0&gt; and</td><td>0</td><td class="wrong">wrong &lt;b&gt;</td><td class="right">0</td></tr>'
        in page
    )
    make_comparison(tmp_path / "comparison")
    assert "Completions before and after" not in write_report(tmp_path / "comparison").read_text()
