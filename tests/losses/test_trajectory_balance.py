"""Trajectory balance: the hand-worked group, and what it converges to on data of another policy."""

import pytest
import torch
from gradients import gradient

from ostinato.errors import ConfigError, DataError
from ostinato.losses import log_partition, trajectory_balance

ONE_TOKEN = torch.ones(2, 1, dtype=torch.bool)
GROUP = torch.zeros(2, dtype=torch.int64)


def test_balance_when_two_completions_share_a_query_is_the_hand_worked_loss() -> None:
    logprobs = torch.tensor([[-2.0], [-3.0]], dtype=torch.float64, requires_grad=True)
    ref, rewards = torch.tensor([[-2.2], [-2.8]], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert log_partition(logprobs, ref, rewards, GROUP, ONE_TOKEN, beta=0.5).tolist() == pytest.approx([1.0, 1.0])
    loss, metrics = trajectory_balance(logprobs, ref, rewards, GROUP, ONE_TOKEN, beta=0.5)
    assert loss.item() == pytest.approx(0.64)
    assert gradient(loss, logprobs).flatten().tolist() == pytest.approx([-0.8, 0.8])
    assert metrics["residual_square_sum"].item() == pytest.approx(1.28)
    given = torch.tensor([1.5, 1.5], dtype=torch.float64, requires_grad=True)
    loss, _ = trajectory_balance(logprobs, ref, rewards, GROUP, ONE_TOKEN, beta=0.5, log_partition_B=given)
    loss.backward()
    assert loss.item() == pytest.approx((0.3**2 + 1.3**2) / 2)
    assert given.grad is None


def test_partition_when_groups_differ_in_size_and_hold_empty_completions_is_a_mean_over_the_others() -> None:
    zeros = torch.zeros(5, 2, dtype=torch.float64)
    group, rewards = torch.tensor([7, 3, 7, 7, 9]), torch.tensor([1.0, 5.0, 3.0, 100.0, 2.0])
    mask = torch.ones(5, 2, dtype=torch.bool)
    mask[3] = mask[4] = False
    assert log_partition(zeros, zeros, rewards, group, mask, beta=1.0).tolist() == [2.0, 5.0, 2.0, 2.0, 0.0]
    loss, _ = trajectory_balance(zeros, zeros, rewards, group, mask, beta=1.0)
    assert loss.item() == pytest.approx((1.0 + 0.0 + 1.0) / 5)


def test_descent_when_data_are_uniform_ends_at_the_tilted_reference() -> None:
    ref = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    rewards = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    logits = ref.clone().requires_grad_()
    for _ in range(300):
        logprobs = logits.log_softmax(0)[:, None]
        mask, group = torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)
        loss, _ = trajectory_balance(logprobs, ref[:, None], rewards, group, mask, beta=0.5)
        with torch.no_grad():
            logits -= 0.5 * gradient(loss, logits)
    torch.testing.assert_close(logits.softmax(0).detach(), (ref + rewards / 0.5).softmax(0), atol=1e-6, rtol=0)


def test_arguments_when_unusable_are_refused() -> None:
    zeros = torch.zeros(2, 1)
    with pytest.raises(ConfigError, match="beta must be above 0, got 0"):
        trajectory_balance(zeros, zeros, torch.zeros(2), GROUP, ONE_TOKEN, beta=0.0)
    with pytest.raises(DataError, match=r"group_B is torch.float32, expected torch.int64"):
        trajectory_balance(zeros, zeros, torch.zeros(2), GROUP.float(), ONE_TOKEN, beta=1.0)
