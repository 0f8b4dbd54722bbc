import json

import numpy as np
import pytest
import torch

from ostinato.backends.hf import warm_start as room
from ostinato.backends.hf.backend import HFBackend
from ostinato.backends.hf.models import snapshot
from ostinato.config import LoopConfig, ModelConfig, RunConfig, SamplingConfig, TaskConfig, WarmStartConfig
from ostinato.errors import CheckpointError, RunError
from ostinato.evaluation import evaluate
from ostinato.protocols import Sampling

MODEL = ModelConfig(hidden_size=32, layers=1, heads=2, kv_heads=2, intermediate_size=64)
TASK = TaskConfig(name="sort", options={"digits": 2}, test_prompts=20)
WARM = WarmStartConfig(target_accuracy=0.3, max_steps=600, batch_size=32, learning_rate=5e-3)


def config(warm=WARM, model=MODEL, seed=0):
    return RunConfig(
        seed=seed,
        model=model,
        task=TASK,
        warm_start=warm,
        sampling=SamplingConfig(max_new_tokens=4),
        loop=LoopConfig(train_steps=1),
    )


def accuracy(backend):
    sampling = Sampling(max_new_tokens=4)
    return evaluate(
        backend.generator(), backend.scorer, backend.tasks.test, sampling=sampling, samples=50, seed=(9,)
    ).accuracy


def test_backend_warm_starts_once_to_about_the_target(tmp_path, monkeypatch):
    backend = HFBackend(config(), tmp_path)
    report = backend.warm_start_report
    assert 0.3 <= report.accuracy < 0.6
    assert accuracy(backend) == pytest.approx(report.accuracy, abs=0.25)
    directory = next(tmp_path.glob("warm-start-*"))
    stored = json.loads((directory / "warm_start.json").read_text())
    assert (stored["accuracy"], stored["steps"], stored["prompts"]) == (report.accuracy, report.steps, 20)

    monkeypatch.setattr(room, "_train", None)
    again = HFBackend(config(seed=5), tmp_path)
    assert again.warm_start_report == report
    first, second = backend.trainer().weights(), again.trainer().weights()
    assert all(torch.equal(first[name], second[name]) for name in first)

    for name, content in {"warm_start.json": b"{}", "model.safetensors": b"\0" * 9, "config.json": b"["}.items():
        kept = (directory / name).read_bytes()
        (directory / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"{directory.name} cannot be read: .*it is made again"):
            HFBackend(config(seed=5), tmp_path)
        (directory / name).write_bytes(kept)


def test_warm_start_that_does_not_get_there_says_how_far_it_came(tmp_path):
    warm = WarmStartConfig(target_accuracy=1.0, max_steps=3, batch_size=4)
    with pytest.raises(RunError, match=r"sampled accuracy 0\.\d+ after warm_start\.max_steps 3"):
        HFBackend(config(warm), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_backend_share_no_memory(tmp_path):
    backend = HFBackend(config(WarmStartConfig(target_accuracy=0)), tmp_path)
    assert backend.warm_start_report is None
    trainer, generator = backend.trainer(), backend.generator()
    before = backend.trainer().weights()
    generator.load({name: value + 1 for name, value in trainer.weights().items()}, 1)
    for weights in (trainer.weights(), backend.trainer().weights()):
        assert all(torch.equal(weights[name], before[name]) for name in before)
    assert np.array_equal(snapshot(generator._model)["model.norm.weight"], before["model.norm.weight"] + 1)


def test_backend_loads_a_model_by_path(tmp_path):
    built = HFBackend(config(WarmStartConfig(target_accuracy=0)), tmp_path)
    built.trainer().save(tmp_path / "run")
    loaded = HFBackend(config(model=ModelConfig(path=str(tmp_path / "run" / "model"))), tmp_path)
    first, second = built.trainer().weights(), loaded.trainer().weights()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert accuracy(loaded) == accuracy(built)
