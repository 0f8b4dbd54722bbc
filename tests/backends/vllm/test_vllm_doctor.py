"""`ostinato doctor` with vLLM's engine: what it says of a right and of a stale one."""

from __future__ import annotations

import pytest

pytest.importorskip("ostinato.backends.vllm", exc_type=ImportError)

from tests.backends.vllm.conftest import request

from ostinato.backends.hf.trainer import HFTrainer
from ostinato.cli.doctor_probe import examine, probed
from ostinato.config import LoopConfig, OptimizerConfig, RunConfig, SamplingConfig

CONFIG = probed(
    RunConfig(generator="vllm", loop=LoopConfig(clock="wall", train_steps=1), sampling=SamplingConfig(temperature=0.9)),
    None,
)
REQUESTS = [request(i, f"{i}+3=", 4) for i in range(4)]


def trainer(first, tokenizer) -> HFTrainer:
    return HFTrainer(first, tokenizer, loss=CONFIG.loss, optimizer=OptimizerConfig(learning_rate=3e-4))


def test_the_engine_is_in_order(engine, first, tokenizer) -> None:
    parity, weights = examine(CONFIG, trainer(first, tokenizer), engine, REQUESTS)
    assert (parity.level, weights.level) == ("OK", "OK")
    assert parity.figures["max_abs"] < 1e-4 and weights.figures["after"]["max_abs"] < 1e-4
    assert weights.figures["moved"]["max_abs"] > 0.05
    assert weights.figures["versions"] == [weights.figures["version"]]


def test_an_engine_without_the_new_weights_is_a_fault(engine, first, tokenizer, monkeypatch) -> None:
    load, kept = type(engine).load, {}

    def stale(self, weights, version):
        load(self, kept.setdefault("first", weights), version)

    monkeypatch.setattr(type(engine), "load", stale)
    parity, weights = examine(CONFIG, trainer(first, tokenizer), engine, REQUESTS)
    assert (parity.level, weights.level) == ("OK", "FAULT")
    assert "still has the old weights" in weights.text
