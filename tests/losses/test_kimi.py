"""REINFORCE with a quadratic pull: by hand, against finite differences, and where it comes to rest."""

import math
from functools import partial

import pytest
import torch
from cases import inputs, one_token
from gradients import assert_matches_finite_differences, gradient

from ostinato.errors import ConfigError
from ostinato.losses.kimi import kimi
from ostinato.losses.reinforce import reinforce


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize(("log_ratio", "advantage"), [(0.4, 1.0), (-0.5, -2.0), (0.0, 1.0)])
def test_kimi_when_one_token_has_moved_pulls_it_back(level, log_ratio, advantage) -> None:
    loss, slope, clipped = one_token(partial(kimi, level=level), math.exp(log_ratio), advantage)
    assert loss == pytest.approx(-advantage * (log_ratio - 3) + 0.05 * log_ratio**2)
    assert (slope, clipped) == pytest.approx((-advantage + 0.1 * log_ratio, 0))


@pytest.mark.parametrize(
    ("level", "penalty", "slopes"),
    [("sequence", 0.05 * 0.1**2, (0.1 * 0.1,) * 2), ("token", 0.05 * (0.3**2 + 0.2**2), (0.1 * 0.3, 0.1 * -0.2))],
)
def test_kimi_when_two_tokens_moved_apart_squares_what_its_level_says(level, penalty, slopes) -> None:
    logprobs = torch.tensor([[0.3, -0.2]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss, _ = kimi(logprobs, torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1), mask, level=level)
    assert loss.item() == pytest.approx(penalty)
    assert gradient(loss, logprobs).tolist() == [pytest.approx(slopes)]


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_kimi_gradient_when_compared_with_finite_differences_agrees(level) -> None:
    x = inputs(0.6)

    def loss(values: torch.Tensor) -> torch.Tensor:
        return kimi(values, x.behavior, x.advantages, x.mask, level=level, tau=0.7, weights_B=x.weights).loss

    assert_matches_finite_differences(loss, x.logprobs)


def test_kimi_gradient_when_the_policy_has_not_moved_is_that_of_reinforce() -> None:
    x = inputs(0.0)
    ours = kimi(x.logprobs, x.behavior, x.advantages, x.mask)
    plain = reinforce(x.logprobs, x.advantages, x.mask)
    torch.testing.assert_close(gradient(ours.loss, x.logprobs), gradient(plain.loss, x.logprobs))


def test_descent_when_advantages_are_those_above_the_soft_value_ends_at_the_tilted_policy() -> None:
    # With A = r - tau log Z the squared loss is stationary at pi = mu exp(r / tau) / Z: the paper's optimum.
    behavior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    rewards, tau = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), 0.5
    target = behavior * (rewards / tau).exp()
    soft_value = tau * target.sum().log()
    logits = behavior.log().requires_grad_()
    mask = torch.ones(3, 1, dtype=torch.bool)
    for _ in range(400):
        logprobs = logits.log_softmax(0)[:, None]
        advantages, weights = rewards - soft_value, 3 * behavior
        loss, _ = kimi(logprobs, behavior.log()[:, None], advantages, mask, tau=tau, weights_B=weights)
        with torch.no_grad():
            logits -= 2.0 * gradient(loss, logits)
    torch.testing.assert_close(logits.softmax(0).detach(), target / target.sum(), atol=1e-6, rtol=0)


def test_kimi_when_tau_is_impossible_is_refused() -> None:
    with pytest.raises(ConfigError, match="tau must be above 0, got 0"):
        one_token(kimi, 1.0, 1.0, tau=0.0)
