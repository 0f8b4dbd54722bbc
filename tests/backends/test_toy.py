"""The tabular policy: its distribution, its gradient, and its agreement with the torch losses."""

import numpy as np
import pytest

from ostinato.advantages import score_group
from ostinato.backends.toy import ToyBackend, closed_form, log_softmax
from ostinato.backends.toy_autograd import AutogradSlope
from ostinato.config import LossConfig
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


@pytest.mark.parametrize(
    "loss",
    [
        LossConfig(name="grpo"),
        LossConfig(name="grpo", clip_low=0.9, clip_high=1.1, advantage="group_mean"),
        LossConfig(name="asymre"),
        LossConfig(name="asymre", shift=0.2),
        LossConfig(name="asymre", advantage="fixed_baseline", baseline=0.3),
    ],
    ids=str,
)
def test_slope_when_in_closed_form_is_that_of_autograd_through_the_loss(loss) -> None:
    backend, rng = ToyBackend(CONFIG), np.random.default_rng(2)
    rollouts = batch(backend, rng.normal(size=(32, 3, 4)), 6)
    behavior = rollouts.behavior_logprobs[rollouts.loss_mask].reshape(-1, 3).astype(np.float64)
    logprobs = behavior + rng.normal(scale=0.3, size=behavior.shape)
    zeros = np.zeros(len(rollouts), np.int64)
    draw = Draw(rollouts, zeros, rng.random(len(rollouts)) + 0.5, zeros, zeros, zeros, zeros)
    slope, clipped = closed_form(loss)(draw, logprobs, behavior, behavior)
    expected, expected_clipped = AutogradSlope(loss, 3)(draw, logprobs, behavior, behavior)
    assert slope == pytest.approx(expected, abs=1e-12)
    assert clipped.tolist() == expected_clipped.tolist()
    assert np.abs(slope).max() > 0 and (loss.name == "asymre" or 0.1 < clipped.mean() / 3 < 0.7)


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
