"""Two losses for the fresh and the replayed part: neither part's size dilutes the other."""

import pytest
import torch
from cases import inputs
from gradients import gradient

from ostinato.errors import ConfigError
from ostinato.losses import asymre, grpo, mixed, shaped_importance

FRESH, REPLAYED = torch.arange(6), torch.arange(6, 8)


def test_mixture_when_parts_differ_in_size_adds_their_own_means() -> None:
    x = inputs(0.6)
    fresh, replayed = x.rows(FRESH), x.rows(REPLAYED)
    one = grpo(fresh.logprobs, fresh.behavior, fresh.advantages, fresh.mask)
    other = shaped_importance(replayed.logprobs, replayed.behavior, replayed.advantages, replayed.mask)
    both = mixed(one, other, replayed_coefficient=0.5)
    assert both.loss.item() == pytest.approx(one.loss.item() + 0.5 * other.loss.item())
    assert mixed(one, other, replayed_coefficient=0.5, mean=True).loss.item() == pytest.approx(both.loss.item() / 1.5)
    slopes = torch.autograd.grad(both.loss, x.logprobs, retain_graph=True)[0]
    expected = gradient(one.loss, x.logprobs) + 0.5 * gradient(other.loss, x.logprobs)
    torch.testing.assert_close(slopes, expected)
    assert slopes[6:].any()
    assert both.metrics["tokens"] == x.mask.sum()
    assert both.metrics["ratio_max"] == max(one.metrics["ratio_max"], other.metrics["ratio_max"])
    assert both.metrics["replayed_tokens"] == replayed.mask.sum()
    assert both.metrics["fresh_kl_sum"] == one.metrics["kl_sum"]


def test_mixture_when_nothing_is_replayed_is_the_fresh_loss() -> None:
    x = inputs(0.6)
    one = grpo(x.logprobs, x.behavior, x.advantages, x.mask)
    y = x.rows(torch.arange(0))
    nothing = asymre(y.logprobs, y.advantages, y.mask)
    assert mixed(one, nothing).loss == one.loss
    assert mixed(one, nothing).metrics["tokens"] == one.metrics["tokens"]


def test_mixture_when_its_coefficient_is_impossible_is_refused() -> None:
    x = inputs(0.6)
    one = grpo(x.logprobs, x.behavior, x.advantages, x.mask)
    with pytest.raises(ConfigError, match="replayed_coefficient must be above 0, got 0"):
        mixed(one, one, replayed_coefficient=0.0)
