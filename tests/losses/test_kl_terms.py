"""The divergence from a reference: estimators by hand, and what their gradients are in expectation."""

import pytest
import torch
from gradients import gradient
from torch import Tensor

from ostinato.losses import kl_penalty, kl_terms


@pytest.mark.parametrize(("estimator", "mean"), [("k1", 0.075), ("k2", 0.02625), ("k3", 0.024140)])
def test_estimators_when_averaged_over_four_tokens_are_the_hand_worked_means(estimator, mean) -> None:
    gap = torch.tensor([[0.2, -0.1, 0.0, -0.4]], dtype=torch.float64)  # log ref - log pi
    every = torch.ones(1, 4, dtype=torch.bool)
    assert kl_terms(-gap, torch.zeros_like(gap), every, estimator=estimator).mean().item() == pytest.approx(
        mean, abs=1e-6
    )
    loss, metrics = kl_penalty(-gap, torch.zeros_like(gap), every, estimator=estimator)
    assert loss.item() == pytest.approx(mean, abs=1e-6)
    assert metrics["kl_ref_sum"].item() == pytest.approx(4 * mean, abs=4e-6)


def expectation(logits: Tensor, behavior: Tensor, ref: Tensor, estimator: str, *, ratio: bool) -> Tensor:
    """The penalty's exact expectation over tokens drawn from the behavior policy: one rollout a token of V."""
    vocabulary = len(logits)
    log_pi = logits.log_softmax(0)[:, None]
    loss, _ = kl_penalty(
        log_pi,
        ref.log_softmax(0)[:, None],
        torch.ones(vocabulary, 1, dtype=torch.bool),
        behavior_logprobs_BL=behavior.log_softmax(0)[:, None] if ratio else None,
        estimator=estimator,
        weights_B=behavior.softmax(0) * vocabulary,
    )
    return loss


def policies() -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    pi, behavior, ref = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    return pi.requires_grad_(), behavior, ref


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p.softmax(0) * (p.log_softmax(0) - q.log_softmax(0))).sum()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradient_when_tokens_are_stale_is_that_of_the_divergence_under_the_ratio(estimator) -> None:
    pi, behavior, ref = policies()
    loss, exact = expectation(pi, behavior, ref, estimator, ratio=True), divergence(pi, ref)
    torch.testing.assert_close(gradient(loss, pi), gradient(exact, pi), rtol=1e-10, atol=1e-12)
    if estimator != "k2":
        assert loss.item() == pytest.approx(exact.item())


def test_gradient_when_the_ratio_is_left_out_misses_the_divergence_even_on_fresh_tokens() -> None:
    pi, _, ref = policies()
    fresh = pi.detach()
    of_k1 = gradient(expectation(pi, fresh, ref, "k1", ratio=False), pi)
    torch.testing.assert_close(of_k1, torch.zeros_like(of_k1), rtol=0, atol=1e-12)
    of_k3 = gradient(expectation(pi, fresh, ref, "k3", ratio=False), pi)
    torch.testing.assert_close(of_k3, gradient(divergence(ref, pi), pi), rtol=1e-10, atol=1e-12)
    of_k2 = gradient(expectation(pi, fresh, ref, "k2", ratio=False), pi)
    torch.testing.assert_close(of_k2, gradient(divergence(pi, ref), pi), rtol=1e-10, atol=1e-12)
