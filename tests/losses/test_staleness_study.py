"""The study of losses under staleness: it holds the age fixed, chooses by its rule, and writes what it found."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostinato.errors import DataError
from ostinato.protocols import Task
from ostinato.rollouts import Rollouts
from ostinato.telemetry import read_jsonl

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "recipes" / "staleness"))
import noisy_toy
import results
import study

SMALL = replace(
    study.STUDIES["toy"],
    losses=("grpo", "topr"),
    staleness=(0, 3),
    rates=(8.0, 32.0),
    tuning_seeds=(100,),
    seeds=(0, 1),
    train_steps=40,
)


@pytest.fixture(scope="module")
def conducted(tmp_path_factory):
    out = tmp_path_factory.mktemp("staleness")
    return out, study.conduct(SMALL, out, workers=1)


def test_study_when_conducted_trains_on_batches_of_exactly_the_age_it_says(conducted) -> None:
    out, _ = conducted
    directory = SMALL.job("topr", 3, 8.0, 100, out).directory
    ages = [r["staleness"] for r in read_jsonl(directory / "metrics.jsonl") if r["event"] == "step"]
    assert ages == [0.0, 1.0, 2.0] + [3.0] * 37
    with pytest.raises(DataError, match="expected 2"):
        results.measured(SMALL.job("topr", 3, 8.0, 100, out), 2)


def test_study_when_conducted_reports_the_best_rate_of_the_tuning_seeds_on_other_seeds(conducted) -> None:
    out, numbers = conducted
    assert list(numbers["cells"]) == ["grpo", "topr"]
    for loss, row in numbers["cells"].items():
        for age, cell in row.items():
            assert list(cell["seeds"]) == ["0", "1"] and list(cell["tuning"]) == ["8", "32"]
            assert cell["tuning"][f"{cell['rate']:g}"] == max(cell["tuning"].values())
            run = cell["seeds"]["1"]
            assert run["accuracy"] == pytest.approx(np.mean(run["curve"]["accuracy"][1:]))
            assert set(results.DIAGNOSTICS) <= set(run) and 0 < run["ess_fraction"] <= 1
            assert SMALL.job(loss, int(age), cell["rate"], 1, out).is_finished
    assert numbers["versions"]["numpy"] == np.__version__


def test_study_when_called_again_runs_nothing(conducted, capsys) -> None:
    out, numbers = conducted
    assert study.conduct(SMALL, out, workers=1) == numbers
    # 2 losses, 2 ages: with 2 rates on 1 tuning seed, then with 1 rate on 2 seeds.
    assert capsys.readouterr().out.count("8 runs, 8 of them finished before") == 2
    assert not list(out.glob("toy/*/checkpoints"))


def test_rates_when_two_are_equally_good_the_lower_is_taken() -> None:
    tuning = {
        ("grpo", 0, 1.0): [{"accuracy": 0.5}, {"accuracy": 0.7}],
        ("grpo", 0, 2.0): [{"accuracy": 0.75}, {"accuracy": 0.45}],
        ("grpo", 4, 1.0): [{"accuracy": 0.5}],
        ("grpo", 4, 2.0): [{"accuracy": 0.51}],
    }
    assert results.choose_rates(tuning) == {("grpo", 0): 1.0, ("grpo", 4): 2.0}


def test_tables_when_the_page_has_marks_are_put_between_them(conducted, tmp_path) -> None:
    _, numbers = conducted
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- toy accuracy -->\n\nold\n\n<!-- end of toy accuracy -->\nafter\n", encoding="utf-8")
    for _ in range(2):
        results.renew_tables(numbers, "toy", page)
    table = results.accuracy_table(numbers)
    assert page.read_text("utf-8") == (
        f"before\n<!-- toy accuracy -->\n\n{table}\n\n<!-- end of toy accuracy -->\nafter\n"
    )
    assert "| `topr` |" in table and "staleness 3" in table and "at 32" in table


def test_curves_when_drawn_are_a_png(conducted, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    results.draw_curves(conducted[1], tmp_path / "new" / "curves.png")
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_noisy_scorer_when_asked_again_says_the_same_and_is_right_a_third_of_the_time() -> None:
    config = SMALL.job("grpo", 0, 8.0, 0, Path()).config
    drawn = np.random.default_rng(0).integers(config.toy.vocabulary, size=(2000, config.toy.length))
    rollouts = Rollouts.from_completions([[0]] * 2000, list(drawn), [[-2.0, -2.0]] * 2000, group_id=7)
    tasks = [Task(prompt="0", answer="", prompt_id=0, source="toy")] * 2000
    rewards = noisy_toy.NoisyScorer(config).score(rollouts, tasks)
    np.testing.assert_array_equal(rewards, noisy_toy.NoisyScorer(config).score(rollouts, tasks))
    assert set(rewards) == {0.0, 1.0}
    # E u^2 = 1/3; 64 completions give the mean quality a deviation of 0.3 / 8.
    assert abs(rewards.mean() - 1 / 3) < 0.12
    # Equal completions share their quality: the best of 64 is nearly always right.
    places = drawn @ (config.toy.vocabulary ** np.arange(2))
    means = [rewards[places == place].mean() for place in range(64)]
    assert max(means) > 0.8 and min(means) < 0.1
