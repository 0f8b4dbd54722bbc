"""`ostinato simulate` as a user calls it: what it prints, refuses, reads and draws."""

import json
from pathlib import Path

import pytest

from ostinato.cli.main import main
from ostinato.rollout_files import write_rollouts
from ostinato.rollouts import Rollouts

EXAMPLE = "--generators 6 --trainers 2 --capacity 252 --batch-size 60 --group-size 16 --mu 5.28 --steps 2000 --seed 0"
QUEUE = "--buffer queue --capacity 180 --generators 7 --trainers 1 --mu 5.28 --steps 1000"
RECIPE = """
seed = 3
[model]
backend = "toy"
[task]
name = "toy"
[loop]
generators = 4
trainers = 4
mu = 2.0
batch_size = 40
group_size = 8
compute_units = 5.0
[buffer]
capacity = 200
"""


def numbers(capsys, *words: str) -> dict:
    assert main(["simulate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def recipe(tmp_path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


def test_simulate_when_asked_for_json_has_these_keys_and_the_numbers_of_theory(capsys) -> None:
    result = numbers(capsys, *EXAMPLE.split())
    assert set(result) == {
        *("train_steps", "time", "generated", "trained", "buffer_size", "staleness", "residence", "uses"),
        *("steps_since_last_use", "new", "generator_idle", "trainer_idle", "queue_wait", "paused"),
        *("compute_per_update", "gamma", "mean_uses"),
    }
    assert (result["train_steps"], result["trained"], result["buffer_size"]) == (2000, 120_000, 252)
    # mu T / W = 5.28 * 2 / 6 and (1 + 6 / 2) / 6.28, by hand; nobody waits, so the play agrees with both.
    assert result["mean_uses"] == pytest.approx(1.76)
    assert result["gamma"] == pytest.approx(4 / 6.28)
    assert result["uses"]["mean"] == pytest.approx(1.76, rel=0.01)
    assert result["compute_per_update"] == pytest.approx(result["gamma"], rel=0.01)
    assert (result["generator_idle"], result["trainer_idle"]) == (pytest.approx(0, abs=1e-9),) * 2
    # R = 60 / 1.76 rollouts arrive a step, so the newest N = 252 are of x = 7.39 steps: ages 1 .. x, mean (x + 1) / 2.
    assert result["residence"]["mean"] == pytest.approx((252 * 1.76 / 60 + 1) / 2, rel=0.05)
    assert sum(result["staleness"]["counts"]) == result["trained"]
    assert sum(result["steps_since_last_use"]["counts"]) + result["new"] == result["trained"]


def test_simulate_when_completions_differ_says_that_theory_leaves_it_out(capsys) -> None:
    assert main(["simulate", "--steps", "20", "--lengths", "lognormal:0.8"]) == 0
    assert "gamma = 0.425, with equal completions and no stragglers, pauses or latency" in capsys.readouterr().out


def test_simulate_when_run_twice_prints_the_same_and_another_seed_something_else(capsys) -> None:
    words = ["--steps", "50", "--lengths", "lognormal:0.8", "--batching", "longest", "--stragglers", "0.05,4"]
    first, again = (numbers(capsys, *words) for _ in range(2))
    assert first == again
    assert numbers(capsys, *words, "--seed", "1")["time"] != first["time"]


def test_simulate_when_given_a_recipe_takes_its_loop_and_options_and_settings_override_it(capsys, recipe) -> None:
    alone = numbers(capsys, recipe)
    # mu T / W = 2; 5 baseline updates of (1 + 2) 40 rollouts buy fewer steps than --steps asks for below.
    assert alone["mean_uses"] == pytest.approx(2)
    assert alone["train_steps"] < 30
    other = numbers(capsys, recipe, "--trainers", "2", "--loop.mu=6", "--steps", "30")
    assert other["mean_uses"] == pytest.approx(3)
    assert other["train_steps"] == 30  # the recipe's own end does not cut it short
    assert other["trained"] == 30 * 40


def test_simulate_when_a_queue_uses_each_rollout_once_and_the_faster_side_waits(capsys) -> None:
    words = QUEUE.split()
    result = numbers(capsys, *words)
    assert result["uses"]["mean"] == 1
    assert result["steps_since_last_use"] == {"counts": [], "mean": None}
    # Generators make 7 / 5.28 batches while one is trained on: they wait 1 - 5.28 / 7 of their time.
    assert result["generator_idle"] == pytest.approx(1 - 5.28 / 7, abs=0.01)
    assert result["trainer_idle"] == pytest.approx(0, abs=0.01)
    assert result["queue_wait"]["max"] > 0
    assert main(["simulate", *words]) == 0
    said = capsys.readouterr().out
    assert "180 rollouts queued, each used once; 1000 train steps" in said
    assert "last use    100.0% of samples were new" in said  # none was drawn before
    assert "no stragglers" not in said


def test_simulate_when_lengths_come_from_a_file_waits_for_its_longest(tmp_path, capsys) -> None:
    path = tmp_path / "rollouts.jsonl"
    lengths = [1, 1, 1, 5]  # mean 2: the longest of a request is 2.5 means, hardly ever less among 16
    tokens = [[0] * n for n in lengths]
    rollouts = Rollouts.from_completions([[0]] * 4, tokens, [[0.0] * n for n in lengths])
    write_rollouts(path, [rollouts])
    words = ["--steps", "600", "--batching", "longest", "--mu", "5"]
    plain, slow = numbers(capsys, *words), numbers(capsys, *words, "--lengths", str(path))
    assert plain["generated"] / slow["generated"] == pytest.approx(2.5, rel=0.05)


def test_simulate_when_lengths_come_from_a_run_takes_its_newest_checkpoint(tmp_path, capsys, recipe) -> None:
    run = tmp_path / "run"
    assert main(["train", recipe, "--out", str(run)]) == 0
    capsys.readouterr()
    # All completions of the toy are of one length, so nothing changes.
    plain, same = numbers(capsys, "--steps", "20"), numbers(capsys, "--steps", "20", "--lengths", str(run))
    assert same["generated"] == plain["generated"]
    assert same["time"] == pytest.approx(plain["time"])


def test_simulate_when_drawn_writes_an_svg_and_a_png(tmp_path, capsys) -> None:
    for name, start in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        assert main(["simulate", "--steps", "5", "--figure", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    assert main(["simulate", "--steps", "5", "--figure-2", str(tmp_path / "two")]) == 0
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["replay_histograms.png", "replay_histograms.svg"]
    capsys.readouterr()
    drawn = numbers(capsys, "--steps", "5", "--figure-2", str(tmp_path / "two"))
    # Seven panels of the paper, of which (6, 2) with 252 is in both rows.
    assert len(drawn) == 6 and all(result["train_steps"] == 5 for result in drawn.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--steps 0", "--steps must be at least 1, got 0"),
        ("--lengths lognormal", "needs a number"),
        ("--lengths lognormal:-1", "must be within [0, 4], got -1"),
        ("--lengths=", "a path that exists, got ''"),
        ("--lengths nowhere", "a path that exists, got 'nowhere'"),
        ("--stragglers 2,3", "a fraction within [0, 1]"),
        ("--stragglers 0.5,1e13", "at most 1e+12"),
        ("--pause 1e308", "pause must be within 0 and 1e+12"),
        ("--reward-latency -1", "reward latency must be within 0 and 1e+12, got -1"),
        ("--success-rate nan", "success_rate must be a finite number"),
        ("--mu 1e-9", "a simulation takes 1e+08; play fewer steps"),
        ("--capacity 10", "a batch never fits"),
        ("--order oldest", "--order is of a queue"),
        ("--buffer queue --sampler epoch", "--sampler is of a replay buffer"),
        ("--buffer queue --no-replacement", "--no-replacement is of a replay buffer"),
        ("--sampler epoch --no-replacement", "--no-replacement is of the uniform sampler"),
        ("--task.name=gsm8k", "settings of loop, buffer, seed only"),
        ("--model.backend hf", "settings of loop, buffer, seed only"),
        ("--figure out.txt", "--figure must end in .svg or .png"),
        ("--figure nowhere/a.svg", "nowhere is no directory"),
        ("--figure-2 pyproject.toml/a", "pyproject.toml is no directory"),
        ("--figure-2 out --capacity 100", "leave out --capacity"),
        ("nowhere.toml", "nowhere.toml does not exist"),
    ],
)
def test_simulate_when_impossible_says_why_in_one_line(words, message, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("")
    assert main(["simulate", *words.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
