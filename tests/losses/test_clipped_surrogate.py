"""GRPO and its relatives by explicit arguments: hand-worked values and gradients."""

import math
from functools import partial

import pytest
import torch
from cases import one_token
from gradients import gradient
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.losses import PRESETS, clipped_surrogate

replayed = PRESETS["advantage_prioritized"]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.5, 1.0, -1.28, 0.0, 1),
        (0.5, 1.0, -0.5, -0.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),
        (1.5, -1.0, 1.5, 1.5, 0),
        (12.0, -1.0, 10.0, 0.0, 1),
        (9.0, -2.0, 18.0, 18.0, 0),
        (12.0, 1.0, -1.28, 0.0, 1),
    ],
)
def test_dual_clip_when_the_advantage_is_negative_bounds_the_loss_at_c(ratio, advantage, loss, slope, clipped) -> None:
    assert one_token(replayed, ratio, advantage) == pytest.approx((loss, slope, clipped))


def rows(*values: list[float]) -> tuple[Tensor, Tensor]:
    """Padded float64 log-ratios of completions of unequal length, and their mask."""
    length = max(map(len, values))
    padded = torch.full((len(values), length), math.nan, dtype=torch.float64)
    for row, value in zip(padded, values, strict=True):
        row[: len(value)] = torch.tensor(value, dtype=torch.float64)
    return padded.requires_grad_(), ~padded.isnan()


@pytest.mark.parametrize(
    ("preset", "denominator", "loss", "slopes"),
    [
        ("grpo", None, -0.25, (-1 / 4, 0.5 / 16)),
        ("dapo", None, 0.2, (-1 / 10, 0.5 / 10)),
        ("dr_grpo", 2 * 10, 0.1, (-1 / 20, 0.5 / 20)),
    ],
)
def test_aggregations_when_completions_have_2_and_8_tokens_weigh_them_differently(
    preset, denominator, loss, slopes
) -> None:
    logprobs, mask = rows([0.0] * 2, [0.0] * 8)
    advantages = torch.tensor([1.0, -0.5], dtype=torch.float64)
    result = PRESETS[preset](logprobs, torch.zeros(2, 8), advantages, mask, denominator=denominator)
    assert result.loss.item() == pytest.approx(loss)
    expected = torch.tensor(slopes, dtype=torch.float64)[:, None] * mask
    torch.testing.assert_close(gradient(result.loss, logprobs), expected)


def test_dr_grpo_when_its_constant_is_missing_is_refused() -> None:
    logprobs, mask = rows([0.0])
    with pytest.raises(ConfigError, match="aggregation 'constant' needs its denominator"):
        PRESETS["dr_grpo"](logprobs, torch.zeros(1, 1), torch.ones(1), mask)


GSPO_TOKENS = [0.01, -0.02, 0.03, 0.0]


@pytest.mark.parametrize(
    ("advantage", "loss", "slope", "clipped"), [(1.0, -1.0004, 0.0, 4), (-1.0, 1.005013, 1.005013 / 4, 0)]
)
def test_gspo_when_the_geometric_mean_leaves_its_narrow_clip_stops_the_whole_sequence(
    advantage, loss, slope, clipped
) -> None:
    logprobs, mask = rows(GSPO_TOKENS, [0.0])
    advantages = torch.tensor([advantage, 0.0], dtype=torch.float64)
    result = PRESETS["gspo"](logprobs, torch.zeros(2, 4), advantages, mask, denominator=1)
    assert result.loss.item() == pytest.approx(loss, abs=1e-6)
    assert gradient(result.loss, logprobs)[0].tolist() == pytest.approx([slope] * 4, abs=1e-6)
    assert result.metrics["clipped"] == clipped


def test_sequence_level_when_asked_for_takes_the_product_of_the_token_ratios() -> None:
    logprobs, mask = rows(GSPO_TOKENS)
    whole = partial(clipped_surrogate, level="sequence", aggregation="sequence_mean")
    loss, _ = whole(logprobs, torch.zeros(1, 4), torch.ones(1, dtype=torch.float64), mask)
    assert loss.item() == pytest.approx(-math.exp(0.02))
    assert gradient(loss, logprobs).tolist() == [pytest.approx([-math.exp(0.02)] * 4)]


@pytest.mark.parametrize(
    ("advantage", "delta", "dropped"), [(-1.0, 0.5, True), (1.0, 0.5, False), (-1.0, 0.54, False), (0.0, 0.5, False)]
)
def test_sequence_mask_when_a_failure_has_become_unlikely_drops_it(advantage, delta, dropped) -> None:
    # Mean of log mu - log pi over the tokens: 0.5333.
    logprobs, mask = rows([-0.8, -0.2, -0.6], [0.0])
    advantages = torch.tensor([advantage, -1.0], dtype=torch.float64)
    settings = {"clip_low": 0.0, "clip_high": 9.0, "sequence_mask_delta": delta}
    loss, metrics = clipped_surrogate(logprobs, torch.zeros(2, 3), advantages, mask, **settings)
    expected = 0.0 if dropped else -advantage * (math.exp(-0.8) + math.exp(-0.2) + math.exp(-0.6))
    assert loss.item() == pytest.approx((expected + 1.0) / 4)
    assert metrics["clipped"] == (3 if dropped else 0)
    assert gradient(loss, logprobs)[0].any() == (not dropped and advantage != 0)


def test_sequence_mask_when_it_drops_a_rollout_leaves_the_penalty_on_it() -> None:
    logprobs, mask = rows([-0.8, -0.2, -0.6])
    ref = torch.tensor([[-0.5, -0.5, -0.5]], dtype=torch.float64)
    settings = {"sequence_mask_delta": 0.5, "ref_logprobs_BL": ref, "kl_coefficient": 0.1}
    loss, metrics = clipped_surrogate(logprobs, torch.zeros(1, 3), -torch.ones(1), mask, **settings)
    terms = [math.exp(p) * (math.exp(q - p) - 1 - (q - p)) for p, q in ((-0.8, -0.5), (-0.2, -0.5), (-0.6, -0.5))]
    assert loss.item() == pytest.approx(0.1 * sum(terms) / 3)
    assert metrics["kl_ref_sum"].item() == pytest.approx(sum(terms))


def test_penalty_when_not_weighted_by_the_ratio_is_that_of_the_tokens_as_they_are() -> None:
    logprobs, mask = rows([-0.8, -0.2])
    ref = torch.full((1, 2), -0.5, dtype=torch.float64)
    settings = {"ref_logprobs_BL": ref, "kl_coefficient": 2.0, "kl_ratio": False, "kl_estimator": "k2"}
    loss, _ = clipped_surrogate(logprobs, torch.zeros(1, 2), torch.zeros(1), mask, **settings)
    assert loss.item() == pytest.approx(2.0 * (0.3**2 / 2 + 0.3**2 / 2) / 2)
    assert gradient(loss, logprobs).tolist() == [pytest.approx([2.0 * -0.3 / 2, 2.0 * 0.3 / 2])]


def test_presets_when_called_accept_further_options() -> None:
    assert one_token(PRESETS["dapo"], 1.5, 1.0, clip_high=1.4)[0] == pytest.approx(-1.4)


@pytest.mark.parametrize(
    ("preset", "ratio", "advantage", "loss"),
    [
        ("grpo", 0.5, -1.0, 0.8),
        ("dapo", 1.5, 1.0, -1.28),
        ("gspo", 0.9, -1.0, 0.9997),
        ("gspo", 1.1, 1.0, -1.0004),
        ("deepseek_v32", math.exp(-0.45), -1.0, 0.8),
        ("deepseek_v32", math.exp(-0.55), -1.0, 0.0),
        ("advantage_prioritized", 11.0, -1.0, 10.0),
    ],
)
def test_presets_when_a_token_leaves_their_range_bound_it_where_published(preset, ratio, advantage, loss) -> None:
    assert one_token(PRESETS[preset], ratio, advantage)[:2] == pytest.approx((loss, 0.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dual_clip": 1.0}, "dual_clip must be above 1.2, got 1.0"),
        ({"kl_coefficient": 0.1}, "kl_coefficient 0.1 needs ref_logprobs_BL, got None"),
        ({"kl_coefficient": -0.1}, "kl_coefficient must be at least 0, got -0.1"),
        ({"level": "word"}, "level must be one of token, sequence, geometric, got 'word'"),
        ({"aggregation": "sum"}, "aggregation must be one of token_mean, .*, got 'sum'"),
        ({"sequence_mask_delta": 0.0}, "sequence_mask_delta must be above 0, got 0.0"),
        ({"ref_logprobs_BL": torch.zeros(1, 1), "kl_estimator": "k4"}, "KL estimator must be one of k1, k2, k3"),
        ({"clip_low": 0.2, "clip_high": 0.2}, "expected 0 <= clip_low <= 1 <= clip_high"),
    ],
)
def test_settings_when_impossible_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        one_token(clipped_surrogate, 1.0, 1.0, **settings)
