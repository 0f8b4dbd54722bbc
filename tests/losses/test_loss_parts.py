import math

import pytest
import torch

from ostinato.errors import ConfigError, DataError
from ostinato.losses import asymre, grpo
from ostinato.losses.output import ratio_metrics
from ostinato.losses.ratios import masked_log_ratio
from ostinato.losses.reduce import sequence_mean, sequence_sum_mean, token_mean

INF, NAN = math.inf, math.nan


def test_masked_log_ratio_ignores_whatever_stands_outside_the_mask():
    logprobs = torch.tensor([[-1.0, NAN, -INF, -2.0]], requires_grad=True)
    behavior = torch.tensor([[-1.5, -1.0, NAN, -1.0]])
    log_ratio = masked_log_ratio(logprobs, behavior, torch.tensor([[True, False, False, True]]))
    assert log_ratio.tolist() == [[0.5, 0.0, 0.0, -1.0]]
    log_ratio.exp().sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([[math.exp(0.5), 0.0, 0.0, math.exp(-1.0)]]))
    assert logprobs.grad[0, 1:3].tolist() == [0.0, 0.0]


# Two completions, of 2 and of 8 tokens, with a loss of -1 and of 0.5 a token.
UNEVEN = torch.tensor([[-1.0] * 2 + [NAN] * 6, [0.5] * 8])
UNEVEN_MASK = torch.tensor([[True] * 2 + [False] * 6, [True] * 8])


def test_token_mean_lets_every_token_weigh_the_same():
    assert token_mean(UNEVEN, UNEVEN_MASK).item() == pytest.approx(0.2)
    assert token_mean(UNEVEN, UNEVEN_MASK, denominator=40).item() == pytest.approx(0.05)


def test_sequence_sum_mean_divides_sums_by_rollouts_or_by_a_constant():
    assert sequence_sum_mean(UNEVEN, UNEVEN_MASK).item() == pytest.approx(1.0)
    assert sequence_sum_mean(UNEVEN, UNEVEN_MASK, denominator=2 * 10).item() == pytest.approx(0.1)


def test_sequence_mean_lets_every_rollout_weigh_the_same():
    assert sequence_mean(UNEVEN, UNEVEN_MASK).item() == pytest.approx(-0.25)
    assert sequence_mean(UNEVEN, UNEVEN_MASK, denominator=4).item() == pytest.approx(-0.125)
    with_empty = torch.cat([UNEVEN_MASK, torch.zeros(2, 8, dtype=torch.bool)])
    assert sequence_mean(UNEVEN.repeat(2, 1), with_empty).item() == pytest.approx(-0.125)


@pytest.mark.parametrize("reduce", [token_mean, sequence_mean, sequence_sum_mean])
@pytest.mark.parametrize("denominator", [None, 0.0, 5.0])
@pytest.mark.parametrize("shape", [(2, 3), (2, 0), (0, 3)])
def test_reductions_are_zero_when_nothing_is_under_the_mask(reduce, denominator, shape):
    values = torch.full(shape, NAN, requires_grad=True)
    result = reduce(values, torch.zeros(shape, dtype=torch.bool), denominator=denominator)
    result.backward()
    assert result.item() == 0.0
    assert values.grad is not None
    assert not values.grad.any()


def test_ratio_metrics_are_the_hand_worked_sums():
    log_ratio = torch.tensor([[0.2, -0.1, 0.0, -0.4, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, False]])
    clipped = torch.tensor([[True, False, False, True, True]])
    metrics = {name: value.squeeze().item() for name, value in ratio_metrics(log_ratio, clipped, mask).items()}
    assert metrics == {
        "tokens": 4,
        "clipped": 2,
        "clipped_B": 2,
        "ratio_sum": pytest.approx(math.exp(0.2) + math.exp(-0.1) + 1 + math.exp(-0.4)),
        "ratio_max": pytest.approx(math.exp(0.2)),
        "log_ratio_abs_sum": pytest.approx(0.7),
        "kl_sum": pytest.approx(4 * 0.024140, abs=4e-6),
    }


@pytest.mark.parametrize("shape", [(2, 3), (2, 0)])
def test_ratio_metrics_are_zero_without_tokens(shape):
    nothing = torch.zeros(shape, dtype=torch.bool)
    metrics = ratio_metrics(torch.zeros(shape), nothing, nothing)
    assert not any(value.any() for value in metrics.values())
    assert metrics["clipped_B"].shape == (2,)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("advantages_B", torch.ones(2, 1), r"advantages_B has shape \(2, 1\), expected \(2,\)"),
        ("advantages_B", torch.ones(2, 3), r"advantages_B has shape \(2, 3\), expected \(2,\)"),
        ("advantages_B", torch.ones(1), r"advantages_B has shape \(1,\), expected \(2,\)"),
        ("weights_B", torch.ones(2, 1), r"weights_B has shape \(2, 1\), expected \(2,\)"),
        ("behavior_logprobs_BL", torch.ones(3), r"behavior_logprobs_BL has shape \(3,\), expected \(2, 3\)"),
        ("mask_BL", torch.ones(1, 3, dtype=torch.bool), r"mask_BL has shape \(1, 3\), expected \(2, 3\)"),
        ("mask_BL", torch.ones(2, 3), r"mask_BL is torch.float32, expected torch.bool"),
        ("logprobs_BL", torch.ones(3), r"logprobs_BL has shape \(3,\), expected \(B, L\)"),
    ],
)
@pytest.mark.parametrize("loss", [grpo, asymre])
def test_losses_refuse_shapes_that_would_broadcast(loss, name, value, message):
    inputs = {
        "logprobs_BL": torch.full((2, 3), -1.0),
        "behavior_logprobs_BL": torch.full((2, 3), -1.0),
        "advantages_B": torch.ones(2),
        "mask_BL": torch.ones(2, 3, dtype=torch.bool),
        "weights_B": torch.ones(2),
    }
    assert loss(**inputs).loss.ndim == 0
    with pytest.raises(DataError, match=message):
        loss(**inputs | {name: value})


@pytest.mark.parametrize(("low", "high"), [(1.2, 0.8), (0.2, 0.2), (-0.1, 1.2), (NAN, 1.2)])
def test_grpo_refuses_clip_bounds_that_do_not_enclose_1(low, high):
    logprobs, mask = torch.full((2, 3), -1.0), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ConfigError, match=f"<= clip_high, got clip_low {low}, clip_high {high}"):
        grpo(logprobs, logprobs, torch.ones(2), mask, clip_low=low, clip_high=high)
