import math

import pytest
import torch
from gradients import assert_matches_finite_differences, gradient
from torch import Tensor

from ostinato.losses import grpo

ONE_TOKEN = torch.ones(1, 1, dtype=torch.bool)


def one_token(ratio: float, advantage: float, **options: float) -> tuple[float, float, float]:
    """Loss, gradient with respect to log pi, and clipped count of a single token."""
    logprobs = torch.tensor([[math.log(ratio) - 3.0]], dtype=torch.float64, requires_grad=True)
    behavior = torch.full((1, 1), -3.0, dtype=torch.float64)
    loss, metrics = grpo(logprobs, behavior, torch.tensor([advantage], dtype=torch.float64), ONE_TOKEN, **options)
    return loss.item(), gradient(loss, logprobs).item(), metrics["clipped"].item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.5, 1.0, -1.28, 0.0, 1),
        (0.5, 1.0, -0.5, -0.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),
        (1.5, -1.0, 1.5, 1.5, 0),
        (1.1, 2.0, -2.2, -2.2, 0),
        (1.5, 0.0, 0.0, 0.0, 0),
    ],
)
def test_grpo_is_the_hand_worked_clip_of_one_token(ratio, advantage, loss, slope, clipped):
    assert one_token(ratio, advantage, clip_low=0.8, clip_high=1.28) == pytest.approx((loss, slope, clipped))


def test_grpo_clips_at_0_8_and_1_2_by_default():
    assert one_token(1.5, 1.0) == pytest.approx((-1.2, 0.0, 1))
    assert one_token(0.5, -1.0) == pytest.approx((0.8, 0.0, 1))


def test_grpo_averages_weighted_tokens_of_two_rollouts():
    ratios = torch.tensor([[1.5, 1.1, 9.0], [0.5, 1.5, 1.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    advantages, weights = torch.tensor([1.0, -2.0]), torch.tensor([1.0, 0.5])
    loss, metrics = grpo(ratios.log(), torch.zeros(2, 3), advantages, mask, weights_B=weights)
    assert loss.item() == pytest.approx(-((1.2 + 1.1) + 0.5 * -2.0 * (0.8 + 1.5 + 1.0)) / 5)
    assert (metrics["tokens"], metrics["clipped"]) == (5, 2)
    assert metrics["clipped_B"].tolist() == [1, 1]
    assert metrics["ratio_sum"].item() == pytest.approx(1.5 + 1.1 + 0.5 + 1.5 + 1.0)
    assert metrics["ratio_max"].item() == pytest.approx(1.5)


@pytest.mark.parametrize("spread", [0.05, 0.6])
def test_grpo_gradient_matches_finite_differences_inside_and_outside_the_clip(random_batch, spread):
    logprobs, behavior, advantages, mask, weights = random_batch(spread)

    def loss(values: Tensor) -> Tensor:
        return grpo(values, behavior, advantages, mask, weights_B=weights).loss

    clipped = grpo(logprobs, behavior, advantages, mask).metrics["clipped"].item()
    assert clipped == 0 if spread < 0.1 else 5 < clipped < int(mask.sum()) - 5
    assert_matches_finite_differences(loss, logprobs)


def test_grpo_gradient_is_that_of_reinforce_when_the_policy_has_not_moved(random_batch):
    logprobs, _, advantages, mask, weights = random_batch(0.1)
    loss, metrics = grpo(logprobs, logprobs.detach().clone(), advantages, mask, weights_B=weights)
    expected = -(weights * advantages)[:, None] * mask / mask.sum()
    torch.testing.assert_close(gradient(loss, logprobs), expected, rtol=1e-14, atol=0)
    assert metrics["ratio_sum"] == metrics["tokens"] == mask.sum()
    assert metrics["kl_sum"] == metrics["log_ratio_abs_sum"] == metrics["clipped"] == 0


def test_grpo_gives_gradient_to_the_current_policy_only(random_batch):
    logprobs, behavior, advantages, mask, weights = random_batch(0.3)
    others = [tensor.requires_grad_() for tensor in (behavior, advantages, weights)]
    loss, metrics = grpo(logprobs, behavior, advantages, mask, weights_B=weights)
    loss.backward()
    assert [tensor.grad for tensor in others] == [None, None, None]
    assert not any(value.requires_grad for value in metrics.values())
