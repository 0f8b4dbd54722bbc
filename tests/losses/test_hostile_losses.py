"""Types, sizes and settings that a careless caller hands to losses: the right number, or one line that says why not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ostinato.config.losses import LOSSES
from ostinato.errors import ConfigError, DataError
from ostinato.losses import (
    asymre,
    centered_clip,
    clipped_surrogate,
    gipo,
    grpo,
    kimi,
    mixed,
    rollout_figures,
    sapo,
    sat,
    staleness_scale,
    vespo,
)
from ostinato.losses.adaptive_clip import balanced_clip
from ostinato.losses.catalog import objective
from ostinato.losses.inputs import LossInputs

REQUIRED = {
    "gipo": {"sigma": 1.0},
    "truncated_importance": {"high": 2.0},
    "cispo": {"clip_high": 2.0},
    "trajectory_balance": {"beta": 1.0},
}
EVERY = torch.ones(2, 2, dtype=torch.bool)
# Dyadic numbers: the same in every float type.
LOGPROBS = torch.tensor([[-0.5, -1.0], [-2.0, -0.25]])
BEHAVIOR = torch.tensor([[-0.75, -1.0], [-1.0, -0.5]])
ADVANTAGES = torch.tensor([1.0, -1.0])


def run(name: str, logprobs: torch.Tensor, behavior: torch.Tensor, advantages: torch.Tensor):
    """Loss, metrics and gradient of a loss of the catalog."""
    leaf = logprobs.detach().clone().requires_grad_()
    x = LossInputs(
        leaf,
        behavior,
        torch.ones(leaf.shape, dtype=torch.bool),
        advantages,
        torch.ones(len(leaf)),
        torch.zeros(len(leaf), dtype=torch.int64),
        torch.arange(len(leaf)),
        torch.arange(len(leaf)) > 0,
        behavior,
    )
    target = objective(name, REQUIRED.get(name))
    loss, metrics = target(x, float(x.mask.sum()), target.statistics([x])[0])
    loss.backward()
    return loss, metrics, leaf.grad


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_when_everything_is_of_16_bits_is_that_of_float32(name, half) -> None:
    loss, metrics, gradient = run(name, LOGPROBS.to(half), BEHAVIOR.to(half), ADVANTAGES.to(half))
    expected, expected_metrics, expected_gradient = run(name, LOGPROBS, BEHAVIOR, ADVANTAGES)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(metrics, expected_metrics)
    torch.testing.assert_close(gradient.float(), expected_gradient, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_when_advantages_are_whole_numbers_is_that_of_floats(name) -> None:
    loss, _, gradient = run(name, LOGPROBS, BEHAVIOR, ADVANTAGES.long())
    expected, _, expected_gradient = run(name, LOGPROBS, BEHAVIOR, ADVANTAGES)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_metrics_when_float16_log_probs_are_far_apart_are_finite(name) -> None:
    far = torch.full((2, 2), -60.0, dtype=torch.float16)
    _, metrics, _ = run(name, far * 0, far, ADVANTAGES)
    assert metrics["ratio_max"].item() == pytest.approx(math.exp(40))


def test_rollout_figures_when_of_16_bits_keep_the_digits_of_long_rollouts() -> None:
    x = torch.full((1, 4097), 0.0078125, dtype=torch.bfloat16)
    figures = rollout_figures(x, x, torch.ones(x.shape, dtype=torch.bool))
    assert figures["ratio_sum"].item() == pytest.approx(4097 * math.exp(0.0078125), rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logprobs_BL": LOGPROBS.long()}, r"logprobs_BL is torch.int64, expected a float type"),
        ({"behavior_logprobs_BL": BEHAVIOR.long()}, r"behavior_logprobs_BL is torch.int64, expected a float type"),
        ({"behavior_logprobs_BL": BEHAVIOR.numpy()}, r"behavior_logprobs_BL is ndarray, expected a torch.Tensor"),
        ({"logprobs_BL": [[0.0]]}, r"logprobs_BL is list, expected a torch.Tensor"),
        ({"advantages_B": 1.0}, r"advantages_B is float, expected a torch.Tensor"),
        ({"mask_BL": EVERY.float()}, r"mask_BL is torch.float32, expected torch.bool"),
        ({"denominator": math.nan}, r"denominator must be a finite number, got nan"),
        ({"denominator": math.inf}, r"denominator must be a finite number, got inf"),
    ],
)
def test_loss_when_an_argument_is_of_another_type_says_which(changed, message) -> None:
    arguments = {
        "logprobs_BL": LOGPROBS,
        "behavior_logprobs_BL": BEHAVIOR,
        "advantages_B": ADVANTAGES,
        "mask_BL": EVERY,
    }
    with pytest.raises(DataError, match=message):
        grpo(**(arguments | changed))


def test_centered_clip_when_replayed_is_no_mask_says_so() -> None:
    with pytest.raises(DataError, match=r"replayed_B is torch.int64, expected torch.bool"):
        centered_clip(LOGPROBS, BEHAVIOR, BEHAVIOR, ADVANTAGES, EVERY, replayed_B=torch.ones(2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (kimi, {"tau": math.inf}, "tau must be a finite number, got inf"),
        (kimi, {"tau": "a"}, "tau must be above 0, got a"),
        (sapo, {"negative_temperature": math.inf}, "negative_temperature must be a finite number, got inf"),
        (gipo, {"sigma": None}, "sigma must be above 0, got None"),
        (vespo, {"positive": (1.0, math.inf)}, "lambda of positive must be a finite number, got inf"),
        (vespo, {"negative": (1.0,)}, r"negative must be two numbers \(k, lambda\), got \(1.0,\)"),
        (clipped_surrogate, {"clip_high": "1.2"}, "expected 0 <= clip_low <= 1 <= clip_high"),
        (clipped_surrogate, {"kl_coefficient": math.inf}, "kl_coefficient must be a finite number, got inf"),
        (sat, {"quantile": "a"}, r"quantile must be within \[0, 1\], got 'a'"),
        (sat, {"kernel": "hill"}, "kernel must be a function of"),
    ],
)
def test_loss_when_a_setting_would_make_nan_or_is_no_number_is_refused(loss, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        loss(LOGPROBS, BEHAVIOR, ADVANTAGES, EVERY, **settings)


def test_mixed_when_the_coefficient_is_infinite_is_refused() -> None:
    part = asymre(LOGPROBS, ADVANTAGES, EVERY)
    with pytest.raises(ConfigError, match="replayed_coefficient must be a finite number, got inf"):
        mixed(part, part, replayed_coefficient=math.inf)


@pytest.mark.parametrize("settings", [{"step": 1e-13}, {"high": (1.2, math.inf)}, {"low": (0.8, 0.6)}])
def test_balanced_clip_when_its_search_would_never_end_is_refused(settings) -> None:
    with pytest.raises(ConfigError):
        balanced_clip(LOGPROBS - BEHAVIOR, -ADVANTAGES.abs(), EVERY, **settings)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.9, 1.0])
def test_staleness_scale_when_compared_with_numpy_is_its_quantile(quantile) -> None:
    x = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    scale = staleness_scale(x, torch.ones(x.shape, dtype=torch.bool), quantile=quantile)
    assert scale.item() == pytest.approx(np.quantile(x.abs().numpy(), quantile), rel=1e-6)


def test_staleness_scale_when_a_batch_has_more_than_2_to_the_24_tokens_is_its_quantile() -> None:
    x = torch.linspace(0, 1, 2**24 + 1)[None]
    assert staleness_scale(x, torch.ones(x.shape, dtype=torch.bool), quantile=0.5).item() == pytest.approx(0.5)
