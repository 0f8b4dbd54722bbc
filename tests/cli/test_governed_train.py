"""Governors, diagnostics and prioritized replay, through `ostinato train`."""

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


def test_train_when_everything_is_on_raises_the_reward_and_tells_all(tmp_path) -> None:
    words = [
        *("--buffer.sampler", "per", "--buffer.priority", "kl", "--buffer.normalize", "batch"),
        *("--governors.ratio_bound", "3", "--governors.ess_bound", "0.3", "--governors.min_samples", "20"),
        *("--governors.learning_rate", "sqrt", "--governors.gate_z", "5", "--diagnostics.gradient_split_every", "2"),
        *("--buffer.correct_above", "0.5", "--evaluation.every_units", "0"),
    ]
    done = ostinato("train", str(TOY), "--out", "run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    rewards = [line["fresh_reward"] for line in lines if line["fresh_reward"] is not None]
    assert sum(rewards[:5]) / 5 < 0.2 < 0.4 < sum(rewards[-5:]) / 5
    told = {key for line in lines for key in line}
    assert {"ess_fraction", "age_4_15.chi2_token", "buffer_correct_fraction", "learning_rate_scale"} <= told
    assert {"gradient_energy", "gradients_dropped", "reuse.removed_ratio", "reuse.removed_dropped"} <= told
    assert {"grad_norm", "grad_norm_fresh", "grad_norm_replayed", "grad_cosine"} <= told
    statistics = json.loads((tmp_path / "run" / "statistics.json").read_text())
    assert "age_1_3" in statistics["ages"] and statistics["drift"] is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--buffer.beta", "0.5"), "buffer.beta is for a prioritized sampler, got buffer.sampler = uniform"),
        (("--buffer.sampler", "per", "--buffer.priority", "loss"), "buffer.priority must be one of reward, advantage"),
        (("--buffer.capacity_bytes", "900"), "buffer.capacity_bytes 900 < 15360: the tokens of a batch of 60"),
        (("--governors.ess_bound", "0.99"), "a closed age would never open"),
        (("--governors.gate", "0.5"), "unknown setting 'governors.gate'"),
        (("--governors.gate_z", "1" + "0" * 400), "governors.gate_z must be a finite number of at most"),
        (("--loss.options.dual_clip", "[" * 5000), "loss.options.dual_clip"),
    ],
)
def test_train_when_settings_are_impossible_ends_in_one_line_and_writes_nothing(tmp_path, words, message) -> None:
    done = ostinato("train", str(TOY), "--out", "run", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_train_when_no_batch_fits_in_the_bytes_ends_in_one_line(tmp_path) -> None:
    words = ("--buffer.capacity_bytes", "5000", "--sampling.max_new_tokens", "2")
    done = ostinato("train", str(TOY), "--out", "run", *words, cwd=tmp_path)
    assert done.returncode != 0
    assert "no batch of 60 can be drawn: raise buffer.capacity_bytes" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
