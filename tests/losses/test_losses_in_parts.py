"""What both losses share: masks, empty rollouts, and micro-batches that add up to the batch."""

import math
import sys
from importlib import import_module

import pytest
import torch
from gradients import gradient
from torch import Tensor

from ostinato.batching import microbatch_rows
from ostinato.errors import MissingExtraError
from ostinato.losses import LossOutput, asymre, grpo


def loss_of(name: str, batch: tuple[Tensor, ...], denominator: float | None = None) -> LossOutput:
    logprobs, behavior, advantages, mask, weights = batch
    if name == "grpo":
        return grpo(logprobs, behavior, advantages, mask, weights_B=weights, denominator=denominator)
    return asymre(logprobs, advantages, mask, behavior_logprobs_BL=behavior, weights_B=weights, denominator=denominator)


@pytest.mark.parametrize("name", ["grpo", "asymre"])
@pytest.mark.parametrize("hidden", [math.nan, -math.inf, 50.0])
def test_losses_ignore_log_probs_outside_the_mask_exactly(random_batch, name, hidden):
    logprobs, behavior, advantages, mask, weights = random_batch(0.6)
    expected = loss_of(name, (logprobs, behavior, advantages, mask, weights))
    spoiled = torch.where(mask, logprobs, hidden).detach().requires_grad_()
    spoiled_behavior = torch.where(mask, behavior, hidden)
    result = loss_of(name, (spoiled, spoiled_behavior, advantages, mask, weights))
    assert result.loss == expected.loss
    assert result.metrics == expected.metrics
    slopes = gradient(result.loss, spoiled)
    torch.testing.assert_close(slopes, gradient(expected.loss, logprobs), rtol=0, atol=0)
    assert not slopes[~mask].any()


@pytest.mark.parametrize("name", ["grpo", "asymre"])
def test_losses_are_zero_with_zero_gradient_when_every_completion_is_empty(random_batch, name):
    logprobs, behavior, advantages, mask, weights = random_batch(0.6)
    result = loss_of(name, (logprobs, behavior, advantages, torch.zeros_like(mask), weights))
    assert result.loss == 0
    assert not gradient(result.loss, logprobs).any()
    assert {value.item() for value in result.metrics.values()} == {0}


@pytest.mark.parametrize("name", ["grpo", "asymre"])
def test_microbatches_add_up_to_the_gradient_of_the_batch_under_its_denominator(random_batch, name):
    logprobs, *rest = random_batch(0.6)
    rng = torch.Generator().manual_seed(5)
    features = torch.randn(8, 7, 4, generator=rng, dtype=torch.float64)
    policy = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    mask = rest[2]
    denominator = float(mask.sum()) if name == "grpo" else float(len(mask))
    whole = loss_of(name, (logprobs.detach() + 0.1 * features @ policy, *rest))
    expected = gradient(whole.loss, policy)

    total, metrics = torch.zeros_like(policy), []
    parts = microbatch_rows(mask.sum(1).numpy(), 15)
    assert len(parts) > 2
    for rows in map(torch.from_numpy, parts):
        current = logprobs.detach()[rows] + 0.1 * features[rows] @ policy
        part = loss_of(name, (current, *(tensor[rows] for tensor in rest)), denominator)
        total += gradient(part.loss, policy)
        metrics.append(part.metrics)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
    for key, value in whole.metrics.items():
        values = torch.stack([part[key] for part in metrics])
        combined = values.max() if key == "ratio_max" else values.sum()
        torch.testing.assert_close(combined, value, rtol=1e-12, atol=1e-12)


def import_without(monkeypatch: pytest.MonkeyPatch, missing: str, module: str) -> None:
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    import_module(module)


@pytest.mark.parametrize("module", ["ostinato.losses", "ostinato.batching"])
def test_missing_torch_is_an_error_with_the_install_line(monkeypatch, module):
    with pytest.raises(MissingExtraError, match=r"torch is not installed; run: pip install 'ostinato\[hf\]'"):
        import_without(monkeypatch, "torch", module)


def test_missing_modules_of_our_own_are_not_blamed_on_torch(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match=r"ostinato\.losses\.reduce"):
        import_without(monkeypatch, "ostinato.losses.reduce", "ostinato.losses")
