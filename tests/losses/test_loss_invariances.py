"""What may change in a batch without changing what is learned from it, for every loss."""

import inspect
import math
from dataclasses import replace

import cases
import pytest
import torch
from cases import CASES, MEANS, TOKENS, Case, Inputs, balance_statistic, inputs
from gradients import gradient
from torch import Tensor

import ostinato.losses

every_loss = pytest.mark.parametrize("name", CASES)
FIELDS_BL = ("logprobs", "behavior", "proximal", "ref")


def test_cases_when_listed_hold_every_loss_of_the_package() -> None:
    losses = {
        name
        for name, value in vars(ostinato.losses).items()
        if inspect.isfunction(value) and inspect.signature(value).return_annotation == "LossOutput"
    }
    assert losses - vars(cases).keys() == {"mixed"}  # of two losses; what is imported there is used


def denominator(x: Inputs, case: Case) -> float:
    return float(x.mask.sum()) if case.averages == TOKENS else float(len(x.mask))


def detached(x: Inputs) -> Inputs:
    return x.at(x.logprobs.detach())


def outcome(
    x: Inputs, case: Case, count: float | None = None, statistic: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Loss and its gradient with respect to the log-probs."""
    y = x.at(x.logprobs.detach().requires_grad_())
    loss = case.loss(y, count, statistic).loss
    return loss.detach(), gradient(loss, y.logprobs)


@every_loss
def test_rollouts_when_permuted_keep_their_gradients(name) -> None:
    x, case = inputs(0.6), CASES[name]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    loss, slopes = outcome(x, case)
    permuted_loss, permuted_slopes = outcome(x.rows(order), case)
    torch.testing.assert_close(permuted_loss, loss, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(permuted_slopes, slopes[order], rtol=1e-12, atol=1e-15)


@every_loss
def test_tokens_when_moved_within_their_rollout_keep_their_gradients(name) -> None:
    x, case = inputs(0.6), CASES[name]
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0))
    loss, slopes = outcome(x, case)
    moved = replace(detached(x), mask=x.mask[:, order], **{f: getattr(x, f).detach()[:, order] for f in FIELDS_BL})
    moved_loss, moved_slopes = outcome(moved, case)
    torch.testing.assert_close(moved_loss, loss, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(moved_slopes, slopes[:, order], rtol=1e-12, atol=1e-15)


@every_loss
@pytest.mark.parametrize("padding", [0.0, math.nan, -math.inf])
def test_padding_when_added_changes_nothing(name, padding) -> None:
    x, case = inputs(0.6), CASES[name]
    loss, slopes = outcome(x, case)
    columns = {f: torch.nn.functional.pad(getattr(x, f).detach(), (0, 3), value=padding) for f in FIELDS_BL}
    longer = replace(detached(x), mask=torch.nn.functional.pad(x.mask, (0, 3)), **columns)
    longer_loss, longer_slopes = outcome(longer, case)
    torch.testing.assert_close(longer_loss, loss, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(longer_slopes[:, :5], slopes, rtol=1e-12, atol=1e-15)
    assert not longer_slopes[:, 5:].any()


@every_loss
def test_empty_rollouts_when_added_count_only_where_rollouts_are_averaged(name) -> None:
    x, case = inputs(0.6), CASES[name]
    loss, slopes = outcome(x, case)
    doubled = x.rows(torch.arange(16) % 8)
    doubled = replace(doubled, mask=doubled.mask & (torch.arange(16) < 8)[:, None])
    share = 1.0 if case.averages == TOKENS else 0.5
    more_loss, more_slopes = outcome(doubled, case)
    torch.testing.assert_close(more_loss, share * loss, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(more_slopes[:8], share * slopes, rtol=1e-12, atol=1e-15)
    assert not more_slopes[8:].any()


@every_loss
def test_weight_when_two_is_the_rollout_drawn_twice(name) -> None:
    x, case = replace(inputs(0.6), weights=torch.tensor([1, 2, 1, 1, 2, 1, 1, 1], dtype=torch.float64)), CASES[name]
    statistic, count = case.statistic(x), denominator(x, case)
    loss, slopes = outcome(x, case, count, statistic)
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 1, 4])
    per_rollout = statistic is not None and statistic.ndim == 1
    twice = replace(x.rows(rows), weights=None)
    twice_loss, twice_slopes = outcome(twice, case, count, statistic[rows] if per_rollout else statistic)
    torch.testing.assert_close(twice_loss, loss, rtol=1e-12, atol=1e-15)
    added = torch.zeros_like(slopes).index_add_(0, rows, twice_slopes)
    torch.testing.assert_close(added, slopes, rtol=1e-12, atol=1e-15)


@every_loss
def test_loss_when_weights_are_combined_is_linear_in_them(name) -> None:
    x, case = inputs(0.6), CASES[name]
    others = torch.rand(8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    values = [
        case.loss(replace(x, weights=w), None, None).loss for w in (x.weights, others, 3 * x.weights - 2 * others)
    ]
    torch.testing.assert_close(values[2], 3 * values[0] - 2 * values[1], rtol=1e-12, atol=1e-14)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", FIELDS_BL)
def test_loss_when_one_policy_is_far_away_in_both_directions_stays_finite(name, dtype, far) -> None:
    x = inputs(0.6)
    signs = 1.0 - 2.0 * (torch.arange(40).view(8, 5) % 2)
    moved = {far: getattr(x, far).detach() + 1e4 * signs}
    floats = {field: value.to(dtype) for field, value in vars(replace(x, **moved)).items() if value.is_floating_point()}
    loss, slopes = outcome(replace(x, **floats), CASES[name])
    assert loss.isfinite() and slopes.isfinite().all()


KL_SLOPES = {"k1": lambda d: d + 1, "k2": lambda d: d, "k3": lambda d: d}
"""Of r k(d) with respect to log pi at r = 1, d = log pi - log ref: k + k', and k' alone for k2, whose r is detached."""


@pytest.mark.parametrize("estimator", KL_SLOPES)
@pytest.mark.parametrize("alone", [True, False])
def test_gradient_when_no_policy_has_moved_has_the_slope_of_the_divergence(estimator, alone) -> None:
    x = inputs(0.0)
    x = replace(x, ref=inputs(0.6, seed=4).logprobs.detach())
    case = CASES[f"kl {estimator}" if alone else f"{estimator} penalty"]
    slope = KL_SLOPES[estimator](x.logprobs.detach() - x.ref)
    expected = slope if alone else 0.3 * slope - x.advantages[:, None]
    expected = x.weights[:, None] * expected * x.mask / 2.0
    if case.averages == MEANS:
        expected = expected / x.mask.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(outcome(x, case, 2.0)[1], expected, rtol=1e-12, atol=1e-15)


def test_gradient_of_trajectory_balance_is_that_of_reinforce_on_its_residual() -> None:
    x = inputs(0.6)
    gap = ((x.logprobs.detach() - x.ref) * x.mask).sum(1) - x.advantages / 0.5
    residual = balance_statistic(x) + gap  # an advantage of -2 times it
    expected = (x.weights * 2 * residual)[:, None] * x.mask / 8
    torch.testing.assert_close(outcome(x, CASES["trajectory balance"])[1], expected, rtol=1e-12, atol=1e-15)
