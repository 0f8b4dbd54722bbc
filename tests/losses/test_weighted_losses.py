"""Detached weights on A log pi: hand-worked weights, and a slow reference for values and gradients."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from cases import Inputs, inputs, one_token
from gradients import gradient
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses import (
    PRESETS,
    bounded_weights,
    cispo,
    gipo,
    reinforce,
    sat,
    topr,
    truncated_importance,
    vespo,
)
from ostinato.losses.adaptive_clip import inverse_square

RATIOS = torch.tensor([[0.1, 0.4, 1.0, 1.8, 3.0, 6.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("low", "high", "bound", "expected"),
    [
        (0.0, 2.0, "cap", [0.1, 0.4, 1.0, 1.8, 2.0, 2.0]),
        (0.5, 5.0, "mask", [0.0, 0.0, 1.0, 1.8, 3.0, 0.0]),
        (0.0, 3.001, "mask", [0.1, 0.4, 1.0, 1.8, 3.0, 0.0]),
        (0.0, math.inf, "cap", [0.1, 0.4, 1.0, 1.8, 3.0, 6.0]),
    ],
)
def test_importance_weights_when_bounded_are_capped_or_masked(low, high, bound, expected) -> None:
    weights = bounded_weights(RATIOS.log().requires_grad_(), low=low, high=high, bound=bound)
    assert weights.tolist() == [pytest.approx(expected)]
    assert not weights.requires_grad


@pytest.mark.parametrize(
    ("preset", "ratio", "weight"),
    [("cispo_scalerl", 7.0, 5.0), ("cispo_scalerl", 0.01, 0.01), ("cispo_minimax", 7.0, 1.2)],
)
@pytest.mark.parametrize("advantage", [1.0, -2.0])
def test_cispo_when_the_ratio_is_capped_keeps_the_gradient_of_the_token(preset, ratio, weight, advantage) -> None:
    loss, slope, clipped = one_token(PRESETS[preset], ratio, advantage)
    assert (loss, slope) == pytest.approx((-weight * advantage * (math.log(ratio) - 3), -weight * advantage))
    assert clipped == (ratio != weight)


def test_cispo_when_no_cap_is_said_is_refused() -> None:
    with pytest.raises(TypeError, match="clip_high"):
        one_token(cispo, 1.0, 1.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(0.3, -1.0, 0.3), (1.0, -1.0, 1.0), (2.5, -1.0, 1.0), (0.3, 1.0, 1.0), (1.0, 1.0, 1.0), (2.5, 1.0, 1.0)],
)
def test_topr_when_the_policy_leaves_a_failure_fades_it_and_keeps_successes(ratio, advantage, weight) -> None:
    loss, slope, clipped = one_token(topr, ratio, advantage)
    assert (loss, slope) == pytest.approx((-weight * advantage * (math.log(ratio) - 3), -weight * advantage))
    assert clipped == (advantage < 0 and ratio > 1)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(0.5, 1, 1.120422), (1, 1, 1), (2, 1, 0.199148), (0.5, -1, 0.339785), (1, -1, 1), (2, -1, 1.082682)],
)
def test_vespo_when_the_sequence_ratio_moves_has_the_hand_worked_weight(ratio, advantage, weight) -> None:
    loss, slope, _ = one_token(vespo, ratio, float(advantage))
    assert slope == pytest.approx(-weight * advantage, abs=1e-6)
    assert loss == pytest.approx(slope * (math.log(ratio) - 3))


def test_reinforce_when_a_baseline_is_given_subtracts_it() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-0.5, -9.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True], [True, False]])
    rewards, baselines = torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.5])
    loss, metrics = reinforce(logprobs, rewards, mask, baselines_B=baselines)
    assert loss.item() == pytest.approx(-(0.75 * -3.0 - 0.5 * -0.5) / 2)
    assert gradient(loss, logprobs).tolist() == [[-0.375, -0.375], [0.25, 0.0]]
    assert metrics == {"tokens": 3}
    assert reinforce(logprobs, rewards, mask).loss.item() == pytest.approx(3.0 / 2)


def test_truncated_importance_when_unbounded_on_sequences_has_the_gradient_of_the_current_policy() -> None:
    # Two tokens out of 2: four completions, each weighted by its probability under the behavior policy.
    behavior = torch.tensor([0.7, 0.3], dtype=torch.float64).log()
    logits = torch.tensor([0.2, -0.4], dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    rewards = torch.tensor([0.3, 1.0, -0.5, 2.0], dtype=torch.float64)
    drawn = behavior[tokens].sum(1).exp() * 4
    loss, _ = truncated_importance(
        logits.log_softmax(0)[tokens],
        behavior[tokens],
        rewards,
        torch.ones(4, 2, dtype=torch.bool),
        level="sequence",
        high=math.inf,
        aggregation="sequence_sum",
        weights_B=drawn,
    )
    expected_reward = (logits.log_softmax(0)[tokens].sum(1).exp() * rewards).sum()
    torch.testing.assert_close(gradient(loss, logits), -gradient(expected_reward, logits))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 2.0, "high": 1.0}, "expected 0 <= low <= high, got 2.0 and 1.0"),
        ({"high": math.nan}, "expected 0 <= low <= high, got 0.0 and nan"),
        ({"high": 2.0, "bound": "clip"}, "bound must be one of cap, mask, got 'clip'"),
    ],
)
def test_bounds_when_impossible_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        one_token(truncated_importance, 1.0, 1.0, **settings)


Slope = Callable[[Inputs, int, int], float]
"""Minus the gradient of the token's objective, over A: what multiplies the advantage."""


def log_ratios(x: Inputs, i: int) -> dict[int, float]:
    return {t: (x.logprobs[i, t] - x.behavior[i, t]).item() for t in range(x.mask.shape[1]) if x.mask[i, t]}


def capped_token(x: Inputs, i: int, t: int) -> float:
    return min(math.exp(log_ratios(x, i)[t]), 1.1)


def masked_product(x: Inputs, i: int, t: int) -> float:
    rho = math.exp(sum(log_ratios(x, i).values()))
    return rho if 0.5 <= rho <= 2.0 else 0.0


def capped_geometric(x: Inputs, i: int, t: int) -> float:
    return min(math.exp(sum(log_ratios(x, i).values()) / len(log_ratios(x, i))), 1.05)


def tapered(x: Inputs, i: int, t: int) -> float:
    return 1.0 if x.advantages[i] > 0 else min(1.0, math.exp(sum(log_ratios(x, i).values())))


def smooth_product(x: Inputs, i: int, t: int) -> float:
    k, rate = (2, 3) if x.advantages[i] >= 0 else (3, 2)
    w = math.exp(sum(log_ratios(x, i).values()))
    return w**k * math.exp(rate * (1 - w))


def gaussian(x: Inputs, i: int, t: int) -> float:
    d = log_ratios(x, i)[t]
    return math.exp(d - d**2 / (2 * 0.3**2))


def contracted(x: Inputs, i: int, t: int) -> float:
    """SAT's slope: the ratio, and 0 beyond bounds that shrink as (q / |d|)^2 past the median of |d|."""
    sizes = sorted(abs(d) for row in range(len(x.mask)) for d in log_ratios(x, row).values())
    middle = len(sizes) // 2
    q = sizes[middle] if len(sizes) % 2 else (sizes[middle - 1] + sizes[middle]) / 2
    d = log_ratios(x, i)[t]
    c = (q / d) ** 2 if abs(d) > q else 1.0
    beyond = math.exp(d) > 1 + 0.2 * c if x.advantages[i] > 0 else math.exp(d) < 1 - 0.2 * c
    return 0.0 if beyond else math.exp(d)


@pytest.mark.parametrize(
    ("loss", "slope"),
    [
        (partial(truncated_importance, high=1.1), capped_token),
        (partial(cispo, clip_high=1.1), capped_token),
        (partial(truncated_importance, low=0.5, high=2.0, level="sequence", bound="mask"), masked_product),
        (partial(truncated_importance, high=1.05, level="geometric"), capped_geometric),
        (partial(topr, aggregation="token_mean"), tapered),
        (vespo, smooth_product),
        (partial(gipo, sigma=0.3), gaussian),
        (partial(sat, quantile=0.5, kernel=inverse_square), contracted),
    ],
)
def test_gradient_when_weights_are_detached_is_that_of_a_slow_reference(loss, slope: Slope) -> None:
    x = inputs(0.6)
    result = loss(x.logprobs, x.behavior, x.advantages, x.mask, weights_B=x.weights)
    expected = torch.zeros_like(x.logprobs)
    for i, t in x.mask.nonzero().tolist():
        expected[i, t] = -(x.weights[i] * x.advantages[i]).item() * slope(x, i, t) / int(x.mask.sum())
    torch.testing.assert_close(gradient(result.loss, x.logprobs), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss", [partial(cispo, clip_high=1.1), topr, vespo, reinforce])
def test_value_when_weights_are_detached_is_the_slope_times_log_pi(loss) -> None:
    x = inputs(0.6)
    rest = (x.advantages, x.mask) if loss is reinforce else (x.behavior, x.advantages, x.mask)
    value = loss(x.logprobs, *rest, weights_B=x.weights).loss
    slopes: Tensor = gradient(value, x.logprobs)
    assert value.item() == pytest.approx((slopes * x.logprobs.detach()).sum().item())
