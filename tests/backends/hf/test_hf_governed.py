"""Governors and gradient figures in a step of the transformer's trainer."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from ostinato.advantages import score_group
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import snapshot
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.config import LossConfig, OptimizerConfig
from ostinato.governors import (
    GradientGateSettings,
    LearningRateSettings,
    StepGovernor,
    StepSettings,
    learning_rate_scale,
)
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollouts import concatenate

RATE = 1e-3


@pytest.fixture(scope="module")
def draw(qwen, tokenizer, make_module_draw):
    """Twelve rollouts, every third drawn for the first time."""
    requests = [
        GroupRequest(Task(prompt, "", i, "t"), i, 4, (i,), Sampling(max_new_tokens=7))
        for i, prompt in enumerate(["12+30=", "7=", "sort this 54321"])
    ]
    rewards = [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1]]
    groups = HFGenerator(qwen, tokenizer).stream(requests)
    rollouts = concatenate([score_group(group, reward) for group, reward in zip(groups, rewards, strict=True)])
    return replace(make_module_draw(rollouts), uses=(np.arange(12) % 3).astype(np.int64))


def trainer(model, tokenizer, settings=None, loss=None, **optimizer):
    chosen = OptimizerConfig(**{"learning_rate": RATE, "tokens_per_microbatch": 60, **optimizer})
    governor = StepGovernor(settings) if settings else None
    return HFTrainer(model, tokenizer, loss=loss or LossConfig(), optimizer=chosen, governor=governor, max_new_tokens=7)


def gradients(subject):
    return torch.cat([p.grad.flatten().double() for p in subject._model.parameters() if p.grad is not None])


def gradient_of(model, tokenizer, draw, loss=None):
    """The whole gradient of the batch, by a trainer that neither clips nor splits."""
    subject = trainer(model, tokenizer, loss=loss, grad_clip=0.0)
    subject.step(draw)
    return gradients(subject)


@pytest.mark.parametrize("name", ["grpo", "m2po", "dr_grpo"])
def test_gradient_when_split_is_that_of_the_whole_batch(qwen, tokenizer, draw, name) -> None:
    loss = LossConfig(name=name)
    subject = trainer(qwen, tokenizer, StepSettings(gradient_split_every=2), loss, grad_clip=0.0, learning_rate=0.0)
    first, second = subject.step(draw), subject.step(draw)
    assert "grad_norm_fresh" not in first.metrics
    whole = gradient_of(qwen, tokenizer, draw, loss)
    assert gradients(subject) == pytest.approx(whole, rel=1e-4, abs=1e-6)
    assert second.metrics["grad_norm"] == pytest.approx(float(whole.norm()), rel=1e-5)
    for figure in first.figures:
        assert second.figures[figure] == pytest.approx(first.figures[figure], rel=1e-4, abs=1e-5)


def test_gradient_figures_when_split_are_those_of_the_two_halves(qwen, tokenizer, draw) -> None:
    subject = trainer(qwen, tokenizer, StepSettings(gradient_split_every=1), grad_clip=0.0)
    metrics = subject.step(draw).metrics
    halves = []
    for fresh in (True, False):
        # Rollouts of weight 0 stay in the denominator, and give nothing.
        kept = replace(draw, importance_weights=((draw.uses == 0) == fresh).astype(np.float64))
        halves.append(gradient_of(qwen, tokenizer, kept))
    one, other = halves
    assert metrics["grad_norm_fresh"] == pytest.approx(float(one.norm()), rel=1e-4)
    assert metrics["grad_norm_replayed"] == pytest.approx(float(other.norm()), rel=1e-4)
    assert metrics["grad_cosine"] == pytest.approx(float(one @ other / one.norm() / other.norm()), abs=1e-4)
    assert abs(metrics["grad_cosine"]) < 0.99


def test_gradient_figures_when_everything_is_fresh_have_no_cosine(qwen, tokenizer, draw) -> None:
    fresh = replace(draw, uses=np.zeros(12, np.int64))
    metrics = trainer(qwen, tokenizer, StepSettings(gradient_split_every=1)).step(fresh).metrics
    assert metrics["grad_norm_fresh"] == pytest.approx(metrics["grad_norm"], rel=1e-5)
    assert metrics["grad_norm_replayed"] == 0 and "grad_cosine" not in metrics


@pytest.mark.parametrize("rule", ["sqrt", "linear"])
def test_learning_rate_when_governed_is_scaled_for_one_step(qwen, tokenizer, draw, rule) -> None:
    chosen = LearningRateSettings(rule=rule)
    subject = trainer(qwen, tokenizer, StepSettings(learning_rate=chosen))
    subject.step(draw)  # moves the policy away from the batch
    plain = trainer(qwen, tokenizer)
    plain._model, plain._optimizer = copy.deepcopy((subject._model, subject._optimizer))
    plain._objective_step._model = plain._policy.module = plain._model
    before = snapshot(subject._model)
    told = subject.step(draw)
    scale = told.metrics["learning_rate_scale"]
    assert scale == learning_rate_scale(told.figures, chosen) and 0.05 < scale < 0.95
    for group in plain._optimizer.param_groups:
        group["lr"] = RATE * scale
    plain.step(draw)
    after, expected = snapshot(subject._model), snapshot(plain._model)
    assert all(torch.equal(after[name], expected[name]) for name in after)
    assert any(not torch.equal(after[name], before[name]) for name in after)
    assert [group["lr"] for group in subject._optimizer.param_groups] == [RATE]


def test_gradient_when_dropped_leaves_weights_and_optimizer(qwen, tokenizer, draw) -> None:
    subject = trainer(qwen, tokenizer, StepSettings(gate=GradientGateSettings(50.0)), grad_clip=0.5)
    told = [subject.step(draw) for _ in range(6)]
    weights = snapshot(subject._model)
    moments = copy.deepcopy(subject._optimizer.state_dict()["state"])
    spike = subject.step(replace(draw, importance_weights=np.full(12, 100.0)))
    assert spike.dropped and not any(one.dropped for one in told)
    assert spike.metrics["gradients_dropped"] == 1
    assert all(torch.equal(value, weights[name]) for name, value in snapshot(subject._model).items())
    for name, state in subject._optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[key], moments[name][key]) for key in state)
    assert not subject.step(draw).dropped


def test_energy_when_gated_is_the_squared_norm_before_clipping(qwen, tokenizer, draw) -> None:
    subject = trainer(qwen, tokenizer, StepSettings(gate=GradientGateSettings()), grad_clip=1e-3)
    told = subject.step(draw)
    plain = trainer(qwen, tokenizer, grad_clip=0.0)
    plain.step(draw)
    expected = float(plain._model.get_output_embeddings().weight.grad.double().square().sum())
    assert told.metrics["gradient_energy"] == pytest.approx(expected, rel=1e-5) and expected > 1e-4


def test_governor_when_saved_goes_on_bit_for_bit(qwen, tokenizer, draw, tmp_path) -> None:
    settings = StepSettings(LearningRateSettings(), GradientGateSettings(0.1), gradient_split_every=3)
    subject, other = (trainer(qwen, tokenizer, settings) for _ in range(2))
    for _ in range(5):
        subject.step(draw)
    subject.save(tmp_path / "trainer")
    other.load(tmp_path / "trainer")
    for _ in range(4):
        one, same = subject.step(draw), other.step(draw)
        assert one.metrics == same.metrics and one.dropped == same.dropped
    assert all(torch.equal(value, other.weights()[name]) for name, value in subject.weights().items())
