"""What every loss of the package must hold, whatever its formula."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import CASES, MEANS, TOKENS, inputs
from gradients import assert_matches_finite_differences, gradient
from torch import Tensor

from ostinato.batching import microbatch_rows
from ostinato.losses import combined_metrics

every_loss = pytest.mark.parametrize("name", CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.smooth])
@pytest.mark.parametrize("spread", [0.05, 0.6])
def test_gradient_when_nothing_is_detached_matches_finite_differences(name, spread) -> None:
    x, case = inputs(spread), CASES[name]
    statistic = case.statistic(x)
    if statistic is not None and statistic.ndim == 0:
        statistic = statistic * 1.001  # at a bound that is a token's own log-ratio the loss has a jump or a kink

    def loss(values: Tensor) -> Tensor:
        return case.loss(x.at(values), None, statistic).loss

    assert gradient(loss(x.logprobs), x.logprobs).any()
    assert_matches_finite_differences(loss, x.logprobs)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.on_policy is not None])
def test_gradient_when_no_policy_has_moved_is_that_of_reinforce(name) -> None:
    x, case = inputs(0.0), CASES[name]
    result = case.loss(x, 2.0, None)
    expected = -(x.weights * x.advantages)[:, None] * x.mask / 2.0
    if case.averages == MEANS:
        expected = expected / x.mask.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(gradient(result.loss, x.logprobs), case.on_policy * expected, rtol=1e-12, atol=0)
    assert result.metrics["clipped"] == result.metrics["kl_sum"] == 0


@every_loss
@pytest.mark.parametrize("hidden", [math.nan, -math.inf, math.inf, 50.0])
def test_tokens_when_outside_the_mask_reach_neither_value_nor_gradient(name, hidden) -> None:
    x, case = inputs(0.6), CASES[name]
    expected = case.loss(x, None, None)
    spoiled = {
        field: torch.where(x.mask, getattr(x, field).detach(), hidden)
        for field in ("logprobs", "behavior", "proximal", "ref")
    }
    y = replace(x, **spoiled)
    y.logprobs.requires_grad_()
    result = case.loss(y, None, None)
    assert result.loss == expected.loss
    torch.testing.assert_close(result.metrics, expected.metrics, rtol=0, atol=0)
    slopes = gradient(result.loss, y.logprobs)
    torch.testing.assert_close(slopes, gradient(expected.loss, x.logprobs), rtol=0, atol=0)
    assert not slopes[~x.mask].any() and slopes.any()


@every_loss
def test_loss_when_every_completion_is_empty_is_zero_with_zero_gradient(name) -> None:
    x = inputs(0.6)
    x = replace(x, mask=torch.zeros_like(x.mask))
    result = CASES[name].loss(x, None, None)
    assert result.loss == 0
    assert not gradient(result.loss, x.logprobs).any()
    assert not any(value.any() for value in result.metrics.values())


@every_loss
@pytest.mark.parametrize(("rows", "length"), [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("denominator", [None, 0.0, 7.0])
def test_loss_when_the_batch_is_empty_is_zero(name, rows, length, denominator) -> None:
    x = inputs(0.6, rows=rows, length=length)
    result = CASES[name].loss(x, denominator, None)
    result.loss.backward()
    assert result.loss == 0
    assert not any(value.any() for value in result.metrics.values())


@every_loss
def test_microbatches_when_given_the_denominator_of_the_batch_add_up_to_its_gradient(name) -> None:
    x, case = inputs(0.6), CASES[name]
    statistic = case.statistic(x)
    whole = case.loss(x, None, statistic)
    denominator = float(x.mask.sum()) if case.averages == TOKENS else float(len(x.mask))
    total, loss, metrics = torch.zeros_like(x.logprobs), 0.0, []
    parts = microbatch_rows(x.mask.sum(1).numpy(), 8)
    assert len(parts) > 2
    for rows in map(torch.from_numpy, parts):
        per_rollout = statistic is not None and statistic.ndim == 1
        part = case.loss(x.rows(rows), denominator, statistic[rows] if per_rollout else statistic)
        total += gradient(part.loss, x.logprobs)
        loss += part.loss.item()
        metrics.append(part.metrics)
    assert loss == pytest.approx(whole.loss.item(), rel=1e-12)
    torch.testing.assert_close(total, gradient(whole.loss, x.logprobs), rtol=1e-12, atol=1e-15)
    order = torch.from_numpy(np.concatenate(parts))
    expected = {key: value[order] if key.endswith("_B") else value for key, value in whole.metrics.items()}
    torch.testing.assert_close(combined_metrics(metrics), expected, rtol=1e-12, atol=1e-12)


@every_loss
def test_statistic_when_computed_by_the_loss_is_that_of_its_function(name) -> None:
    x, case = inputs(0.6), CASES[name]
    assert case.loss(x, None, case.statistic(x)).loss == case.loss(x, None, None).loss


@every_loss
def test_importance_weights_when_given_scale_the_gradient_of_their_rollout(name) -> None:
    x, case = inputs(0.6), CASES[name]
    bare = gradient(case.loss(replace(x, weights=None), None, None).loss, x.logprobs)
    slopes = gradient(case.loss(x, None, None).loss, x.logprobs)
    torch.testing.assert_close(slopes, x.weights[:, None] * bare, rtol=1e-12, atol=1e-15)


@every_loss
def test_gradient_when_every_input_could_take_one_reaches_the_current_policy_only(name) -> None:
    x = inputs(0.6)
    others = [t.requires_grad_() for t in (x.behavior, x.proximal, x.ref, x.advantages, x.weights)]
    loss, metrics = CASES[name].loss(x, None, None)
    loss.backward()
    assert x.logprobs.grad is not None
    assert [tensor.grad for tensor in others] == [None] * 5
    assert not any(value.requires_grad for value in metrics.values())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("moved", [-1e4, 30.0, 1e4])
def test_loss_when_ratios_would_overflow_stays_finite(name, dtype, moved) -> None:
    x = inputs(0.6)
    far = x.logprobs.detach() + moved
    floats = {field: value.to(dtype) for field, value in vars(x).items() if value.is_floating_point()}
    y = replace(x, **floats | {"logprobs": far.to(dtype).requires_grad_()})
    result = CASES[name].loss(y, None, None)
    assert result.loss.dtype == dtype
    assert math.isfinite(result.loss.item())
    assert gradient(result.loss, y.logprobs).isfinite().all()
    assert all(value.isfinite().all() for value in result.metrics.values())


@every_loss
def test_loss_when_a_per_rollout_input_has_another_shape_is_refused(name) -> None:
    x = inputs(0.6)
    with pytest.raises(ValueError, match=r"weights_B has shape \(8, 1\), expected \(8,\)"):
        CASES[name].loss(replace(x, weights=torch.ones(8, 1)), None, None)
