"""Numbers of papers and released code on corrections for stale or mismatched log-probs, each by the loss that has it.

The weights of one rollout of tokens with the ratios 0.1, 0.4, 1, 1.8, 3 and 6 between trainer and sampler.
"""

import math
from functools import partial

import pytest
import torch
from cases import one_token
from gradients import gradient

from ostinato.losses import decoupled_ppo, grpo, kl_terms, truncated_importance
from ostinato.losses.output import ratio_metrics

RATIOS = (0.1, 0.4, 1.0, 1.8, 3.0, 6.0)
EVERY = torch.ones(1, 6, dtype=torch.bool)


def log_ratios(*ratios: float) -> torch.Tensor:
    return torch.tensor([ratios], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("bounds", "weights"),
    [
        ({"high": 2.0}, (0.1, 0.4, 1, 1.8, 2, 2)),
        ({"low": 0.5, "high": 5.0, "bound": "mask"}, (0, 0, 1, 1.8, 3, 0)),
        ({"high": 3.0 + 1e-9, "bound": "mask"}, (0.1, 0.4, 1, 1.8, 3, 0)),
    ],
    ids=["truncated at 2", "IcePop", "masked above 3"],
)
def test_mismatch_when_two_engines_disagree_weighs_tokens_as_published(bounds, weights) -> None:
    behavior = torch.full((1, 6), -9.0, dtype=torch.float64)
    proximal = behavior + log_ratios(*RATIOS)
    advantages = torch.tensor([1.0], dtype=torch.float64)
    # As a correction of decoupled PPO, whose policy has not moved from the trainer's, and as the weight itself.
    for loss in (
        lambda pi: decoupled_ppo(pi, proximal, behavior, advantages, EVERY, **bounds).loss,
        lambda pi: truncated_importance(pi, behavior, advantages, EVERY, **bounds).loss,
    ):
        pi = proximal.clone().requires_grad_()
        assert (-6 * gradient(loss(pi), pi)).tolist() == [pytest.approx(weights, abs=1e-8)]


def test_k3_when_of_each_ratio_is_the_published_one() -> None:
    published = (1.402585, 0.316291, 0.0, 0.212213, 0.901388, 3.208241)
    for ratio, k3 in zip(RATIOS, published, strict=True):
        one, mask = log_ratios(ratio), torch.ones(1, 1, dtype=torch.bool)
        assert ratio_metrics(one, ~mask, mask)["kl_sum"].item() == pytest.approx(k3, abs=1e-6)
        zero = torch.zeros(1, 1, dtype=torch.float64)
        assert kl_terms(zero, one, mask, estimator="k3").item() == pytest.approx(k3, abs=1e-6)


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [((0.9, -0.9), True), ((0.0015, 0.0), True), ((0.003, 0.0), False), ((-0.003, 0.0), False), ((0.9, -0.8), False)],
)
def test_geometric_rejection_when_the_mean_ratio_leaves_one_in_a_thousand_drops_the_rollout(tokens, kept) -> None:
    logprobs = torch.tensor([tokens], dtype=torch.float64, requires_grad=True)
    options = {"level": "geometric", "low": 0.999, "high": 1.001, "bound": "mask"}
    loss, metrics = truncated_importance(
        logprobs, torch.zeros(1, 2, dtype=torch.float64), torch.ones(1), torch.ones(1, 2, dtype=torch.bool), **options
    )
    weight = math.exp(sum(tokens) / 2) if kept else 0.0
    assert gradient(loss, logprobs).tolist() == [pytest.approx([-weight / 2] * 2)]
    assert metrics["clipped"] == (0 if kept else 2)


@pytest.mark.parametrize(("probability", "weight"), [(0.8, 2.0), (0.5, 1.0), (0.001, 0.01)])
def test_density_ratio_when_of_a_discriminator_is_clipped_as_published(probability, weight) -> None:
    # DUET: w = D / (1 - D) within [0.01, 2]; 0.8 stands for a ratio of 4.
    ratio = probability / (1 - probability)
    slope = one_token(partial(truncated_importance, low=0.01, high=2.0), ratio, 1.0)[1]
    assert slope == pytest.approx(-weight)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"), [(1.5, 1, -1.28), (0.5, 1, -0.5), (0.5, -1, 0.8), (1.5, -1, 1.5), (1.0, 1, -1.0)]
)
def test_clip_higher_when_alone_has_the_published_losses(ratio, advantage, loss) -> None:
    assert one_token(partial(grpo, clip_high=1.28), ratio, float(advantage))[0] == pytest.approx(loss)
