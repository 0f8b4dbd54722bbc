"""The page: from run files to one self-contained HTML file."""

import base64
import json
import re
import sys

import pytest

from ostinato.errors import DataError, MissingExtraError
from ostinato.report import write_report
from ostinato.stats import ArmRun, ReplayStatistics, summarize
from ostinato.telemetry import JsonlWriter, write_json

SETTINGS = {"seed": 0, "loop": {"mu": 5.0, "shards": False}, "task": {"name": "<sort>"}}


def evaluations(stretch):
    return [
        {
            "event": "evaluation",
            "point": 10 * i,
            "compute": 10.0 * i,
            "train_step": 10 * i,
            "generated": 600 * i,
            "trained": 600 * i,
            "busy_generate_s": 5.0 * i,
            "busy_train_s": 1.0 * i,
            "sampled_accuracy": 0.2 + 0.02 * i / stretch,
            "greedy_accuracy": None,
        }
        for i in range(12)
    ]


def make_run(directory, stretch=1.0):
    write_json(directory / "run.json", {"settings": SETTINGS, "python": "3.11", "cores": 2})
    writer = JsonlWriter(directory / "metrics.jsonl")
    writer.write({"event": "step", "compute": 1.0, "reward": 0.25, "train_step": 1})
    for record in evaluations(stretch):
        writer.write(record)
    writer.close()
    write_json(directory / "statistics.json", ReplayStatistics().summary())


def make_comparison(directory):
    runs = []
    for arm, stretch in (("baseline", 1.0), ("replay", 0.6)):
        for seed in (0, 1):
            make_run(directory / f"{arm}-seed{seed}", stretch)
            runs.append(ArmRun(arm, seed, {"buffer": {"kind": arm}}, 60, 5.0, evaluations(stretch)))
    write_json(directory / "summary.json", summarize(runs))


def images(page):
    return re.findall(r'<img src="data:image/png;base64,([A-Za-z0-9+/=]+)" alt="(\w+)">', page)


def test_comparison_page_states_savings_settings_and_environment(tmp_path):
    make_comparison(tmp_path)
    path = write_report(tmp_path)
    page = path.read_text()
    assert path == tmp_path / "report.html"
    assert re.search(r"<strong>40\.0 %</strong>\s*<span>compute saved by <b>replay</b>", page)
    assert "2 of 2 reached it" in page
    assert "<tr><td>replay</td><td>1</td><td>40.0 %</td>" in page
    assert "<tr><td>buffer.kind</td><td><code>replay</code></td></tr>" in page
    assert "<tr><td>cores</td><td><code>2</code></td></tr>" in page
    assert "different compute points" not in page


def test_page_is_self_contained_and_its_figures_lie_beside_it(tmp_path):
    make_comparison(tmp_path)
    page = write_report(tmp_path).read_text()
    assert [name for _, name in images(page)] == ["accuracy", "curves", "replay"]
    for data, name in images(page):
        assert base64.b64decode(data) == (tmp_path / f"{name}.png").read_bytes()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_single_run_page_shows_its_last_numbers(tmp_path):
    make_run(tmp_path / "solo")
    page = write_report(tmp_path / "solo").read_text()
    assert "<h1>solo</h1>" in page
    assert "<strong>0.42</strong><span>sampled accuracy</span>" in page
    assert "<strong>5</strong><span>measured mu</span>" in page
    assert [name for _, name in images(page)] == ["curves", "replay"]


def test_page_escapes_what_it_is_given(tmp_path):
    make_run(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "&lt;sort&gt;" in page
    assert "<sort>" not in page


def test_single_run_page_is_written_when_the_run_has_just_begun(tmp_path):
    write_json(tmp_path / "run.json", {"settings": SETTINGS})
    page = write_report(tmp_path).read_text()
    assert images(page) == []
    assert "&lt;sort&gt;" in page


def test_comparison_page_warns_when_arms_were_evaluated_elsewhere(tmp_path):
    make_comparison(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["rule"]["same_points"] = False
    write_json(tmp_path / "summary.json", summary)
    assert "different compute points" in write_report(tmp_path).read_text()


def test_comparison_page_shows_quartiles_when_there_are_four_seeds(tmp_path):
    runs = [
        ArmRun(arm, seed, {}, 60, 5.0, evaluations(stretch))
        for seed, own in enumerate((0.5, 0.6, 0.7, 0.8))
        for arm, stretch in (("baseline", 1.0), ("replay", own))
    ]
    write_json(tmp_path / "summary.json", summarize(runs))
    page = write_report(tmp_path).read_text()
    # The savings 0.5, 0.4, 0.3, 0.2 have the quartiles 0.275 and 0.425.
    assert '<tr class="median"><td>replay</td><td>quartiles</td><td>27.5 % … 42.5 %</td>' in page


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nothing.txt", "", "is not a run directory: it has neither summary.json nor run.json"),
        ("summary.json", "{", "summary.json is not JSON"),
        ("summary.json", "{}", "summary.json lacks 'arms'"),
        ("summary.json", '{"arms": {}, "rule": {}}', "are not what a run or a comparison writes: KeyError"),
        ("run.json", '{"settings": 3}', "are not what a run or a comparison writes: UndefinedError"),
        ("run.json", "", "run.json is not JSON"),
        ("run.json", "[]", "run.json holds a list, expected an object"),
    ],
)
def test_report_is_an_error_when_the_directory_is_not_a_run(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_report_names_the_file_when_a_metrics_line_is_broken(tmp_path):
    make_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{\n{}\n")
    with pytest.raises(DataError, match=r"metrics.jsonl:1 is not JSON"):
        write_report(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", '{"staleness": {}}'])
def test_report_names_the_file_when_statistics_are_not_statistics(tmp_path, text):
    make_run(tmp_path)
    (tmp_path / "statistics.json").write_text(text)
    with pytest.raises(DataError, match=r"statistics\.json"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_missing_jinja2_prints_the_install_line(tmp_path, monkeypatch):
    write_json(tmp_path / "run.json", {})
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"jinja2 is not installed; run: pip install 'ostinato\[report\]'"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
