import json
from pathlib import Path

import numpy as np
import pytest

from ostinato.cli.main import main
from ostinato.telemetry import read_jsonl
from ostinato.theory import PowerLaw, Workload, optimum

ROOT = Path(__file__).parent.parent.parent
PAPER = sorted((ROOT / "recipes" / "paper").glob("*.toml"))
# Two cores generate with SmolLM2 as fast as they train: nothing to save, which the recipes say and `check` must too.
SAVES_NOTHING = {"words", "reasoning_gym"}


@pytest.fixture(autouse=True)
def _here(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HOME", "/nowhere")


def checked(capsys, recipe, *words: str) -> dict:
    assert main(["check", str(recipe), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, recipe, *words: str) -> str:
    assert main(["check", str(recipe), *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*/*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_fits_its_gpus(recipe, capsys) -> None:
    facts = checked(capsys, recipe)
    assert facts["memory"] is None or facts["memory"]["trainer"]["total"] < 80 << 30
    warned = [line.partition(":")[0] for line in facts["warnings"] if "not installed" not in line]
    # (1 + W / T) / (1 + mu) and mu T / W with W = T = 1, mu = 0.8.
    assert warned == (["gamma = 1.11", "a rollout is used 0.80 times"] if recipe.stem in SAVES_NOTHING else [])
    assert main(["check", str(recipe)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{recipe} is valid\n") and "\nDownloads" in text


@pytest.mark.parametrize(
    ("recipe", "parameters", "gamma", "uses", "horizon"),
    # (1 + W/T) / (1 + mu), mu T / W and N mu T / (B W), by hand.
    [
        ("qwen3-0.6b", 596_049_920, 4 / 7.84, 6.84 / 3, 252 * 6.84 / 180),
        ("qwen2.5-7b", 7_615_616_512, (8 / 3) / 6.28, 5.28 * 0.6, 84 * 5.28 * 0.6 / 60),
        ("llama-3.2-3b", 3_212_749_824, 4 / 6.9, 5.9 / 3, 2048 * 5.9 / 180),
        ("qwen3-8b-lean", 8_190_735_360, (8 / 3) / 4.85, 3.85 * 0.6, 9999 * 3.85 * 0.6 / 60),
    ],
)
def test_the_papers_runs_come_out_as_the_paper_counts_them(capsys, recipe, parameters, gamma, uses, horizon) -> None:
    facts = checked(capsys, ROOT / "recipes" / "paper" / f"{recipe}.toml")
    pace = facts["pace"]
    assert facts["parameters"] == parameters
    assert (facts["generators"] + facts["trainers"]) == 8
    assert pace["gamma"] == pytest.approx(gamma) and pace["uses"] == pytest.approx(uses)
    assert pace["horizon"] == pytest.approx(horizon)
    assert pace["residence"] == pytest.approx((horizon - 1) / 2 + 1)
    assert pace["train_steps"] == pytest.approx(1000 / gamma, abs=1)
    assert any("from the hub" in line for line in facts["downloads"])


def test_memory_is_that_of_the_formulas(capsys) -> None:
    p, v = 7_615_616_512, 152064 * 3584 * 2
    facts = checked(capsys, ROOT / "recipes/paper/qwen2.5-7b.toml", "--gpu-gib", "40")
    trainer, generator = facts["memory"]["trainer"], facts["memory"]["generator"]
    assert (trainer["weights"], trainer["optimizer"]) == (4 * p // 3, 8 * p // 3)
    assert trainer["whole_layers"] > 4 * v
    assert (generator["weights"], generator["kv_token"]) == (2 * p, 57344)
    assert generator["kv_room"] == int(0.9 * (40 << 30)) - 2 * p
    assert any("a trainer needs about 59 GiB, more than a GPU of 40" in line for line in facts["warnings"])


def test_without_a_buffer_each_rollout_counts_once(capsys) -> None:
    pace = checked(capsys, "recipes/demo.toml", "--buffer.kind", "queue", "--loop.epochs", "2")["pace"]
    assert (pace["uses"], pace["horizon"], pace["rollouts_per_step"]) == (2.0, None, 30.0)
    assert pace["gamma"] == pytest.approx((1 + 5.28 / 2) / 6.28)


@pytest.mark.parametrize(
    ("words", "late"),
    [
        (["--loop.generators", "9"], 1),  # generators wait for the learner, which is at work when they are done
        (["--loop.generators", "1"], 0),  # mu T / W = 15.84 uses: the learner waits for them
        (["--loop.generators", "1", "--loop.clock", "turns"], 0),
    ],
)
def test_residence_is_a_step_more_where_rollouts_come_while_the_learner_works(
    capsys, tmp_path: Path, words: list[str], late: int
) -> None:
    """y = 5, so 12 rollouts a step, x = 252 / 12 = 21: (21 - 1) / 2 = 10, and so it is in a run."""
    words = ["--buffer.capacity", "252", "--buffer.samples_per_insert", "5", "--loop.train_steps", "120", *words]
    assert checked(capsys, "recipes/toy.toml", *words)["pace"]["residence"] == pytest.approx(10 + late)
    words = ["--out", str(tmp_path / "run"), "--evaluation.every_units", "0", "--loop.compute_units", "0", *words]
    assert main(["train", "recipes/toy.toml", *words]) == 0
    steps = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    full = [step["residence"] for step in steps if step["buffer_size"] == 252]
    assert np.mean(full) == pytest.approx(10 + late, abs=0.2)


def test_sizes_that_are_auto_are_told_as_they_begin(capsys) -> None:
    words = ["--buffer.capacity", "auto", "--buffer.samples_per_insert", "auto"]
    pace = checked(capsys, "recipes/toy.toml", *words)["pace"]
    best = optimum(Workload(5.28, 0.2, PowerLaw(0.1)))
    assert pace["uses"] == pytest.approx(best.uses_per_rollout)
    assert pace["capacity"] == pytest.approx(best.staleness_horizon * 60 / best.uses_per_rollout, abs=0.5)
    assert pace["gamma"] == pytest.approx((1 + 5.28 / pace["uses"]) / 6.28)
    assert main(["check", "recipes/toy.toml", *words]) == 0
    assert f"(N = {pace['capacity']}, to begin with)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (["--loop.generators", "40"], r"gamma = 2.28: a train step costs no less than without a buffer"),
        (["--loop.generators", "40"], "a rollout is used 0.40 times"),
        (["--buffer.capacity", "20000"], "is more than the 10720 rollouts of the whole run"),
        (["--buffer.samples_per_insert", "0.5"], "than without a buffer; buffer.samples_per_insert 0.5 is too few"),
        (["--buffer.samples_per_insert", "0.5"], "are never drawn; raise buffer.samples_per_insert"),
        (["--loop.max_staleness", "3"], "removes what buffer.capacity 1020 would keep for 54 train steps"),
        (["--loop.clock", "wall"], "trains in one process: loop.trainers 3 counts in nothing but"),
        (["--loop.clock", "wall", "--checkpoint_every", "0"], "a run in real time that is killed begins anew"),
    ],
)
def test_what_is_hardly_meant_is_said(capsys, words: list[str], warning: str) -> None:
    assert [line for line in checked(capsys, "recipes/demo.toml", *words)["warnings"] if warning in line]


def test_trainers_that_a_cluster_would_refuse_are_said(capsys) -> None:
    words = ["--runtime", "ray", "--loop.clock", "wall"]
    said = "runtime = ray refuses loop.trainers 3 of model.backend = toy, set it to 1"
    assert said in checked(capsys, "recipes/toy.toml", *words)["warnings"]
    assert said not in checked(capsys, "recipes/toy.toml", *words, "--loop.trainers", "1")["warnings"]


def test_a_local_model_is_measured_by_its_config(capsys, tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = checked(capsys, "recipes/demo.toml", "--model.path", str(tmp_path))
    # Two blocks: 64*64*2 + 64*32*2 projections, 128 biases, 3*64*160, 2 norms; embedding and output layer; a norm.
    assert facts["parameters"] == 2 * (8192 + 4096 + 128 + 30720 + 128) + 2 * 6400 + 64
    assert facts["downloads"] == []
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    facts = checked(capsys, "recipes/demo.toml", "--model.path", str(tmp_path))
    assert facts["memory"] is None and "not known for architecture 'mamba'" in facts["model_origin"]


def test_an_unknown_hub_model_is_said_to_be_fetched(capsys) -> None:
    facts = checked(capsys, "recipes/demo.toml", "--model.path", "somebody/something")
    assert facts["parameters"] is None and facts["downloads"] == ["model: somebody/something from the hub"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loop.batch_size", "9999"], "loop.batch_size 9999 > buffer.capacity 1020"),
        (["--task.name", "sorts"], "unknown task 'sorts'; did you mean 'sort'"),
        (["--task.name", "jsonl", "--task.file", "none.jsonl", "--task.options", "{}"], "none.jsonl cannot be read"),
        (["--task.scorer", "none.py:f"], "none.py is no file"),
        (
            ["--model.backend", "toy", "--task.name", "toy", "--task.options", "{}", "--task.scorer", "rewards.py:f"],
            "the toy, which has no text, scores itself",
        ),
        (["--task.test_prompts", "2", "--task.scorer", "rewards"], "task.scorer expects"),
        (["--model.path", "./none"], "'./none' is no directory"),
        (["--model.path", "src"], "src has no config.json"),
        (["--loop.trains", "2"], "unknown setting"),
    ],
)
def test_what_would_not_run_is_refused_in_one_line(capsys, words: list[str], message: str) -> None:
    assert message in refused(capsys, "recipes/demo.toml", *words)


def test_a_broken_config_of_a_model_is_refused(capsys, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    assert "does not describe a model: KeyError" in refused(capsys, "recipes/demo.toml", "--model.path", str(tmp_path))


@pytest.mark.parametrize("size", ["0", "-1", "nan", "many"])
def test_a_gpu_of_no_size_is_refused(capsys, size: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "recipes/demo.toml", "--gpu-gib", size])
    assert ended.value.code == 2
    assert "expected GiB above 0" in capsys.readouterr().err


def test_a_hub_model_whose_download_was_broken_off_is_still_to_be_fetched(capsys, monkeypatch, tmp_path) -> None:
    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "a blob that never came")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    found = checked(capsys, "recipes/demo.toml", "--model.path", "a/b")
    assert found["downloads"] == ["model: a/b from the hub"]
    (tmp_path / "a blob that never came").touch()
    assert checked(capsys, "recipes/demo.toml", "--model.path", "a/b")["downloads"] == []
