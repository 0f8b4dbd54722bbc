"""Sums of each rollout: by hand, against plain loops, without torch, and at the extremes."""

import math

import numpy as np
import pytest
import torch
from cases import inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato import stats
from ostinato.errors import DataError
from ostinato.losses import combined_metrics, grpo, masked_log_ratio, ratios, rollout_figures
from ostinato.stats.off_policy import FIGURES, LOG_RATIO_BOUND

LOG_RATIO = torch.tensor([[0.2, -0.1, 0.0, -0.4, 7.0], [0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, True, False], [False] * 5])


def test_figures_when_four_tokens_moved_are_the_hand_worked_sums() -> None:
    entropy = torch.tensor([[1.0, 2.0, 0.5, 0.5, math.nan], [math.nan] * 5], dtype=torch.float64)
    figures = rollout_figures(LOG_RATIO, entropy, MASK, torch.tensor([2, 0]))
    assert tuple(sorted(figures)) == tuple(sorted(FIGURES))
    assert {name: value[0].item() for name, value in figures.items()} == pytest.approx(
        {
            "tokens": 4,
            "log_ratio_sum": -4 * 0.075,
            "log_ratio_abs_sum": 0.7,
            "log_ratio_square_sum": 4 * 2 * 0.02625,
            "ratio_sum": 1.221403 + 0.904837 + 1 + 0.670320,
            "ratio_square_sum": 1.491825 + 0.818731 + 1 + 0.449329,
            "ratio_max": 1.221403,
            "kl_sum": 4 * 0.024140,
            "entropy_sum": 4.0,
            "clipped": 2,
        },
        abs=3e-6,
    )
    assert not any(value[1].any() for value in figures.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_figures_when_taken_without_torch_are_the_same(dtype) -> None:
    x = inputs(0.6)
    log_ratio = masked_log_ratio(x.logprobs, x.behavior, x.mask).to(dtype)
    entropy = torch.rand(x.mask.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    clipped = log_ratio.detach().abs() > 0.3
    ours = rollout_figures(log_ratio, entropy, x.mask, (clipped & x.mask).sum(1))
    arrays = (log_ratio.detach().double(), entropy.double(), x.mask, clipped)
    twin = stats.rollout_figures(*(array.numpy() for array in arrays))
    for name in FIGURES:
        np.testing.assert_allclose(ours[name].numpy(), twin[name], rtol=2e-6 if dtype == torch.float32 else 1e-13)
        assert ours[name].dtype == torch.float64 and twin[name].dtype == np.float64
    assert LOG_RATIO_BOUND == ratios.LOG_RATIO_BOUND


def test_figures_when_added_up_are_the_metrics_of_the_loss() -> None:
    x = inputs(0.6)
    metrics = grpo(x.logprobs, x.behavior, x.advantages, x.mask).metrics
    log_ratio = masked_log_ratio(x.logprobs, x.behavior, x.mask)
    figures = rollout_figures(log_ratio, torch.zeros_like(log_ratio), x.mask, metrics["clipped_B"])
    for name in ("tokens", "ratio_sum", "log_ratio_abs_sum", "kl_sum", "clipped"):
        assert figures[name].sum().item() == pytest.approx(metrics[name].item(), rel=1e-12)
    assert figures["ratio_max"].max() == metrics["ratio_max"]
    assert metrics["clipped"] > 0
    assert not any(value.requires_grad for value in figures.values())


@given(
    st.lists(st.sampled_from([-1e4, -41.0, -1.0, 0.0, 1e-9, 2.0, 41.0, 1e4]), min_size=6, max_size=6),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=40, deadline=None)
def test_figures_when_ratios_are_extreme_are_finite_and_ordered(values, dtype) -> None:
    log_ratio = torch.tensor(values, dtype=dtype).reshape(2, 3)
    every = torch.ones(2, 3, dtype=torch.bool)
    figures = rollout_figures(log_ratio, torch.zeros(2, 3, dtype=dtype), every)
    assert all(value.isfinite().all() for value in figures.values())
    assert (figures["kl_sum"] >= 0).all()
    assert (figures["ratio_sum"] ** 2 <= 3 * figures["ratio_square_sum"] * (1 + 1e-6)).all()
    assert (figures["ratio_max"] <= figures["ratio_sum"] * (1 + 1e-6)).all()
    assert not figures["clipped"].any()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_figures_when_nothing_is_there_are_zero(shape) -> None:
    figures = rollout_figures(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool))
    nothing = np.zeros(shape, np.bool_)
    twin = stats.rollout_figures(np.zeros(shape), np.zeros(shape), nothing, nothing)
    for name in FIGURES:
        assert figures[name].tolist() == twin[name].tolist() == [0.0] * shape[0]


def test_figures_when_the_clip_counts_have_another_shape_are_refused() -> None:
    with pytest.raises(DataError, match=r"clipped_B has shape \(2, 5\), expected \(2,\)"):
        rollout_figures(LOG_RATIO, LOG_RATIO, MASK, MASK)


def test_metrics_when_parts_combine_add_take_the_largest_or_follow_each_other() -> None:
    one = {"kl_sum": torch.tensor(1.5), "ratio_max": torch.tensor(2.0), "clipped_B": torch.tensor([1, 0])}
    other = {"kl_sum": torch.tensor(1.0), "ratio_max": torch.tensor(3.0), "clipped_B": torch.tensor([4])}
    total = combined_metrics([one | {"alone_sum": torch.tensor(1.0)}, other])
    assert {name: value.tolist() for name, value in total.items()} == {
        "kl_sum": 2.5,
        "ratio_max": 3.0,
        "clipped_B": [1, 0, 4],
    }
    assert combined_metrics([]) == {}
