"""A real transformer, tiny, through the whole system: train, stop, resume, evaluate, own files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.backends.hf.backend import HFBackend
from ostinato.cli.main import main
from ostinato.loop import Session
from ostinato.recipe import load_recipe
from ostinato.telemetry import read_jsonl

RECIPE = """
checkpoint_every = 0
[model]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
intermediate_size = 32
[warm_start]
target_accuracy = 0.0
[task]
name = "sort"
options = { digits = 2 }
test_prompts = 16
[sampling]
max_new_tokens = 4
[loop]
generators = 3
trainers = 2
batch_size = 24
group_size = 6
train_steps = 12
[buffer]
capacity = 60
[optimizer]
learning_rate = 1e-2
[evaluation]
every_units = 3.0
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


def ostinato(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ostinato", *words], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def run(recipe: Path, out: Path, *words: str, stop_at: int = 0, resume: bool = False) -> Path:
    config = load_recipe(recipe, words)
    session = Session(config, HFBackend(config, recipe.parent / "cache"), out, resume=resume)
    session.run(lambda: stop_at > 0 and session._loop.ledger.train_step >= stop_at)
    return out


def outcome(directory: Path) -> tuple:
    timing = ("busy_generate_s", "busy_score_s", "busy_train_s", "mu_measured")
    records = [{k: v for k, v in r.items() if k not in timing} for r in read_jsonl(directory / "metrics.jsonl")]
    model = directory / "checkpoints" / "step-00000012" / "trainer" / "model" / "model.safetensors"
    return records, model.read_bytes(), json.loads((directory / "statistics.json").read_text())


@pytest.mark.parametrize(
    "words",
    [(), ("--buffer.kind", "queue"), ("--loop.publish_every", "5", "--loss.name", "asymre")],
    ids=["replay", "queue", "late weights"],
)
def test_run_when_resumed_in_another_process_equals_the_uninterrupted_one(recipe, tmp_path, words) -> None:
    whole = outcome(run(recipe, tmp_path / "whole", *words))
    run(recipe, tmp_path / "cut", *words, stop_at=5)
    done = ostinato("train", str(recipe), "--out", "cut", "--resume", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / "cut") == whole


def test_run_when_on_the_wall_clock_trains_with_two_engines(recipe, tmp_path) -> None:
    words = ("--loop.clock", "wall", "--loop.generators", "2")
    directory = run(recipe, tmp_path / "wall", *words, stop_at=4)
    records = read_jsonl(run(recipe, directory, *words, resume=True) / "metrics.jsonl")
    steps = [r for r in records if r["event"] == "step"]
    assert [r["train_step"] for r in steps] == list(range(1, 13))
    assert steps[-1]["trained"] == 12 * 24
    assert all(r["ratio_mean"] == pytest.approx(1, abs=0.5) for r in steps)


def test_checkpoint_when_finished_is_a_model_that_transformers_loads(recipe, tmp_path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = run(recipe, tmp_path / "run") / "checkpoints" / "step-00000012" / "trainer" / "model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = AutoModelForCausalLM.from_pretrained(model).generate(
        **tokenizer("31=", return_tensors="pt", add_special_tokens=False), max_new_tokens=4, do_sample=False
    )
    assert tokens.shape[1] <= 3 + 4
    again = ostinato(
        "train", str(recipe), "--out", "again", "--model.path", str(model), "--loop.train_steps", "2", cwd=tmp_path
    )
    assert again.returncode == 0, again.stderr
    assert ostinato("eval", "run", cwd=tmp_path).returncode == 0


def test_jsonl_when_trained_on_uses_its_prompts_and_a_broken_line_is_named(recipe, tmp_path) -> None:
    lines = [json.dumps({"prompt": f"{a}+{b}=", "answer": a + b}) for a in range(8) for b in range(8)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    words = ["--task.name", "jsonl", "--task.file", "sums.jsonl", "--task.scoring", "numeric", "--task.options", "{}"]
    done = ostinato("train", str(recipe), "--out", "sums", *words, "--loop.train_steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "sums.jsonl").write_text("\n".join([*lines[:5], '{"prompt": "1+1="', *lines[5:]]))
    done = ostinato("train", str(recipe), "--out", "broken", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "sums.jsonl:6" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.path", "no/such/model"], "no/such/model"),
        (["--task.name", "srot"], "sort"),
        (["--task.options", "{digit = 3}"], "digits"),
        (["--task.test_prompts", "5000"], "test"),
        (["--task.name", "reasoning-gym:chain_summ", "--task.options", "{}"], "chain_sum"),
    ],
)
def test_train_when_model_or_task_is_wrong_fails_in_one_line_and_writes_nothing(
    recipe, tmp_path, monkeypatch, capsys, words, message
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(recipe), "--out", "run", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
