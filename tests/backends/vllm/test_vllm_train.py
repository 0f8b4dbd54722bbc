"""A recipe with generator = vllm from the command line: one engine, several requests at once, new weights meanwhile."""

from __future__ import annotations

import gc
import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from ostinato.backends.hf.backend import HFBackend
from ostinato.backends.hf.generator import HFGenerator
from ostinato.cli import main
from ostinato.recipe import config_from_dict

pytest.importorskip("ostinato.backends.vllm", exc_type=ImportError)

RECIPE = """
generator = "vllm"
checkpoint_every = 0
model = {hidden_size = 64, layers = 2, heads = 2, kv_heads = 1, intermediate_size = 96}
warm_start.target_accuracy = 0
task = {name = "add", test_prompts = 16}
sampling.max_new_tokens = 16
vllm = {kv_cache_gib = 0.25, pause = "keep"}
buffer = {capacity = 64, samples_per_insert = 2.0}
evaluation.every_units = 100

[loop]
clock = "wall"
generators = 1
requests_per_generator = 3
trainers = 1
batch_size = 16
group_size = 8
train_steps = 12
"""


def test_train_on_vllm_keeps_versions_and_counts(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    recipe, out = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    assert main(["train", str(recipe), "--out", str(out)]) == 0, capsys.readouterr().err
    gc.collect()  # the engine ends with the run
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["event"] == "step"]
    assert [step["train_step"] for step in steps] == list(range(1, 13))
    assert steps[-1]["generated"] + 64 >= 12 * 16 / 2 and steps[-1]["generated"] % 8 == 0
    assert max(step["staleness"] for step in steps) > 0
    assert steps[0]["log_ratio_abs"] < 1e-5  # weights of version 0: what vLLM drew is what the trainer computes
    finished = json.loads((out / "finished.json").read_text())
    assert finished["train_step"] == 12
    assert [record["event"] for record in records].count("evaluation") >= 1
    (store,) = out.glob("checkpoints/*/buffer.npz")
    with np.load(store) as arrays:
        assert any("token_versions" in name for name in arrays.files)


def test_evaluations_get_an_engine_of_their_own_only_where_it_serves_rollouts_too(tmp_path) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    config = config_from_dict(tomllib.loads(RECIPE))
    backend = HFBackend(config, tmp_path)
    assert isinstance(backend.generator(), HFGenerator)
    assert isinstance(backend.concurrent_generator(), VLLMGenerator)
    in_turns = replace(config.loop, clock="turns", requests_per_generator=1)
    turns = replace(config, loop=in_turns, buffer=replace(config.buffer, samples_per_insert=2.0))
    assert isinstance(HFBackend(turns, tmp_path).generator(), VLLMGenerator)


def test_train_in_turns_puts_the_engine_to_sleep_while_it_trains(tmp_path, monkeypatch, capsys) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    calls: list[str] = []
    for name in ("sleep", "wake"):
        method = getattr(VLLMGenerator, name)

        def noted(self, name=name, method=method):
            calls.append(name)
            method(self)
            assert self._asleep is (name == "sleep")

        monkeypatch.setattr(VLLMGenerator, name, noted)
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    recipe, out = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    turns = ["--loop.clock", "turns", "--loop.requests_per_generator", "1", "--loop.train_steps", "6"]
    assert main(["train", str(recipe), "--out", str(out), *turns]) == 0, capsys.readouterr().err
    gc.collect()
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["event"] == "step"]
    assert [step["train_step"] for step in steps] == list(range(1, 7))
    # Two groups fill the buffer, then one for every batch, since a rollout is drawn twice.
    assert [step["generated"] for step in steps] == [16, 24, 32, 40, 48, 56]
    assert steps[0]["log_ratio_abs"] < 1e-5
    assert steps[-1]["switches"] == 11
    assert calls == ["sleep", "wake"] * 6  # the last time for the evaluation at the end
    assert all(
        evaluation["greedy_accuracy"] is not None for evaluation in records if evaluation["event"] == "evaluation"
    )
