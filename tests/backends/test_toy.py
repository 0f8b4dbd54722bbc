"""The tabular policy: its distribution, its gradient, and its agreement with the torch losses."""

import numpy as np
import pytest
import torch

from ostinato.advantages import score_group
from ostinato.backends.toy import ToyBackend, log_softmax, loss_slope
from ostinato.config import LossConfig
from ostinato.losses import asymre, grpo
from ostinato.protocols import Draw, GroupRequest, Sampling
from ostinato.recipe import config_from_dict
from ostinato.rollouts import Rollouts, concatenate

CONFIG = config_from_dict(
    {"model": {"backend": "toy"}, "task": {"name": "toy"}, "loop": {"train_steps": 1}, "toy": {"learning_rate": 1.0}}
)


def batch(backend: ToyBackend, table: np.ndarray, groups: int, temperature: float = 1.0) -> Rollouts:
    engine = backend.generator()
    engine.load({"table": table}, 0)
    requests = [
        GroupRequest(backend.tasks.train(i), i, 8, (5, i), Sampling(temperature=temperature)) for i in range(groups)
    ]
    rewards = np.random.default_rng(0).random((groups, 8))
    return concatenate([score_group(g, rewards[i]) for i, g in enumerate(engine.stream(requests))])


def test_completions_when_sampled_follow_the_softmax_at_the_temperature() -> None:
    from scipy.stats import chisquare

    backend = ToyBackend(CONFIG)
    table = np.random.default_rng(1).normal(size=(32, 3, 4))
    engine = backend.generator()
    engine.load({"table": table}, 0)
    (group,) = engine.stream([GroupRequest(backend.tasks.test[3], 0, 4000, (9,), Sampling(temperature=0.7))])
    first = group.tokens[group.loss_mask].reshape(-1, 3)[:, 0]
    expected = np.exp(log_softmax(table[3, 0] / 0.7))
    assert chisquare(np.bincount(first, minlength=4), 4000 * expected).pvalue > 1e-3
    assert group.behavior_logprobs[group.loss_mask].reshape(-1, 3)[:, 0] == pytest.approx(np.log(expected)[first])
    (greedy,) = engine.stream([GroupRequest(backend.tasks.test[3], 0, 2, (9,), Sampling(temperature=0))])
    assert greedy.tokens[greedy.loss_mask].reshape(-1, 3).tolist() == [table[3].argmax(-1).tolist()] * 2


@pytest.mark.parametrize("name", ["grpo", "asymre"])
def test_slope_when_compared_with_autograd_through_the_losses_agrees(name) -> None:
    backend, rng = ToyBackend(CONFIG), np.random.default_rng(2)
    rollouts = batch(backend, rng.normal(size=(32, 3, 4)), 6)
    behavior = rollouts.behavior_logprobs[rollouts.loss_mask].reshape(-1, 3).astype(np.float64)
    logprobs = behavior + rng.normal(scale=0.3, size=behavior.shape)
    weights = rng.random(len(rollouts)) + 0.5
    loss = LossConfig(name=name)
    slope, clipped = loss_slope(loss, rollouts, np.exp(logprobs - behavior), weights)
    leaf = torch.tensor(logprobs, requires_grad=True)
    mask, w = torch.ones(leaf.shape, dtype=torch.bool), torch.tensor(weights)
    if name == "grpo":
        out = grpo(leaf, torch.tensor(behavior), torch.tensor(rollouts.advantage), mask, weights_B=w)
        assert 0.1 < clipped.mean() < 0.6 and clipped.sum() == out.metrics["clipped"]
    else:
        shifted = torch.tensor(rollouts.reward - rollouts.group_reward_mean - loss.shift)
        out = asymre(leaf, shifted, mask, weights_B=w)
    out.loss.backward()
    assert slope == pytest.approx(leaf.grad.numpy(), abs=1e-12)


def test_step_when_taken_descends_along_the_finite_difference_gradient() -> None:
    backend = ToyBackend(CONFIG)
    trainer, rng = backend.trainer(), np.random.default_rng(3)
    trainer.table = rng.normal(size=trainer.table.shape)
    rollouts = batch(backend, trainer.table + 0.05 * rng.normal(size=trainer.table.shape), 5, temperature=0.8)
    prompts, zeros = rollouts.tokens[rollouts.offsets[:-1]], np.zeros(len(rollouts), np.int64)
    tokens = rollouts.tokens[rollouts.loss_mask].reshape(-1, 3)
    behavior = rollouts.behavior_logprobs[rollouts.loss_mask].reshape(-1, 3)

    def objective(table: np.ndarray) -> float:
        logprobs = np.take_along_axis(log_softmax(table[prompts] / 0.8), tokens[..., None], -1)[..., 0]
        ratio, a = np.exp(logprobs - behavior), rollouts.advantage[:, None]
        return float(-np.minimum(ratio * a, ratio.clip(0.8, 1.2) * a).mean())

    before = trainer.table.copy()
    trainer.step(Draw(rollouts, zeros, np.ones(len(rollouts)), zeros, zeros, zeros, zeros))
    moved = before - trainer.table
    for prompt, place, token in [(int(prompts[0]), 0, 1), (int(prompts[9]), 2, 3), (int(prompts[20]), 1, 0)]:
        bump = np.zeros_like(before)
        bump[prompt, place, token] = 1e-5
        slope = (objective(before + bump) - objective(before - bump)) / 2e-5
        assert moved[prompt, place, token] == pytest.approx(slope, abs=1e-6)
