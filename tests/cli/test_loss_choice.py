"""Losses chosen in a recipe and on the command line, through `ostinato train`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.telemetry import read_jsonl

TOY = Path(__file__).parents[2] / "recipes" / "toy.toml"


def ostinato(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ostinato", *words], cwd=cwd, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--loss.name", "dapo", "--loss.kl_coefficient", "0.01"),
        ("--loss.name", "m2po", "--loss.options", '{variant = "cap", threshold = 0.01}'),
        ("--loss.name", "topr", "--loss.advantage", "fixed_baseline", "--loss.baseline", "0.5"),
    ],
    ids=["dapo", "m2po", "topr"],
)
def test_train_when_a_loss_is_chosen_raises_the_reward(tmp_path, words) -> None:
    done = ostinato("train", str(TOY), "--out", "run", "--evaluation.every_units", "0", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rewards = [record["reward"] for record in read_jsonl(tmp_path / "run" / "metrics.jsonl")]
    assert sum(rewards[:5]) / 5 < 0.2 < 0.5 < sum(rewards[-5:]) / 5
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["loss"]["name"] == words[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--loss.name", "gspo", "--loss.shift", "-0.1"), "loss.shift is for advantage shifted"),
        (("--loss.name", "m2po", "--loss.options.treshold", "0.1"), "unknown option 'treshold' of loss 'm2po'"),
        (("--loss.name", "gpo"), "loss.name must be one of grpo, "),
    ],
)
def test_train_when_the_loss_is_impossible_ends_in_one_line_and_writes_nothing(tmp_path, words, message) -> None:
    done = ostinato("train", str(TOY), "--out", "run", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
