import pytest
import torch
from gradients import assert_matches_finite_differences, gradient
from torch import Tensor

from ostinato.losses import asymre


def test_asymre_weighs_two_successes_in_8_by_1_6_and_failures_by_minus_0_4():
    logprobs = torch.full((8, 2), -0.5, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.6] * 2 + [-0.4] * 6, dtype=torch.float64)
    loss, _ = asymre(logprobs, advantages, torch.ones(8, 2, dtype=torch.bool))
    assert loss.item() == pytest.approx(-(1.6 * 2 - 0.4 * 6) * -1.0 / 8)
    torch.testing.assert_close(gradient(loss, logprobs), -advantages[:, None].expand(8, 2) / 8)


def test_asymre_sums_over_tokens_and_averages_over_rollouts():
    logprobs = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, -9.0, -9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    loss, metrics = asymre(logprobs, torch.tensor([0.5, -1.0]), mask, weights_B=torch.tensor([1.0, 0.2]))
    assert loss.item() == pytest.approx(-(0.5 * -3.0 + 0.2 * -1.0 * -0.5) / 2)
    assert metrics == {"tokens": 3}


def test_asymre_gradient_matches_finite_differences(random_batch):
    logprobs, _, advantages, mask, weights = random_batch(0.6)

    def loss(values: Tensor) -> Tensor:
        return asymre(values, advantages, mask, weights_B=weights).loss

    assert_matches_finite_differences(loss, logprobs)


def test_asymre_reports_the_ratio_without_using_it(random_batch):
    logprobs, behavior, advantages, mask, weights = random_batch(0.6)
    plain = asymre(logprobs, advantages, mask, weights_B=weights)
    measured = asymre(logprobs, advantages, mask, weights_B=weights, behavior_logprobs_BL=behavior)
    assert measured.loss == plain.loss
    assert measured.metrics["clipped"] == 0
    assert measured.metrics["ratio_sum"].item() == pytest.approx((logprobs - behavior).exp()[mask].sum().item())
    assert not any(value.requires_grad for value in measured.metrics.values())


@pytest.mark.parametrize(
    ("behavior", "rewards", "baseline", "limit"),
    [
        ((0.5, 0.3, 0.2), (0.0, 0.5, 1.0), -1.0, (10 / 27, 9 / 27, 8 / 27)),
        ((0.5, 0.3, 0.2), (0.0, 0.5, 1.0), 0.0, (0.0, 3 / 7, 4 / 7)),
        ((0.5, 0.3, 0.2), (0.0, 0.5, 1.0), 0.25, (0.0, 0.125, 0.875)),
        ((0.5, 0.3, 0.2), (0.0, 0.5, 1.0), 0.45, (0.0, 0.0, 1.0)),
        # At the mean reward exactly, 0.365: one arm, and not the best one.
        ((0.5, 0.45, 0.05), (0.0, 0.7, 1.0), 0.365, (0.0, 1.0, 0.0)),
    ],
)
def test_asymre_gradient_flow_ends_at_the_limit_policy_of_its_baseline(behavior, rewards, baseline, limit):
    behavior = torch.tensor(behavior, dtype=torch.float64)
    rewards = torch.tensor(rewards, dtype=torch.float64)
    logits = behavior.log().requires_grad_()
    for _ in range(3000):
        # One rollout an arm, weighted so that the mean over rollouts is the expectation under the behavior policy.
        logprobs = logits.log_softmax(0)[:, None]
        loss, _ = asymre(logprobs, rewards - baseline, torch.ones(3, 1, dtype=torch.bool), weights_B=3 * behavior)
        with torch.no_grad():
            logits -= gradient(loss, logits)
    torch.testing.assert_close(logits.softmax(0).detach(), torch.tensor(limit, dtype=torch.float64), atol=1e-3, rtol=0)
