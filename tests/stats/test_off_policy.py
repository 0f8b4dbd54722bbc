"""Diagnostics of a batch: the hand-worked numbers, brute force over tokens, bounds, extremes, refusals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from ostinato.errors import ConfigError, DataError
from ostinato.stats import FIGURES, age_buckets, diagnose, effective_sample_fraction, rollout_figures

log_weights = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=12).map(np.array)


def figures_of(log_ratios: list[list[float]]) -> dict[str, np.ndarray]:
    """Figures of rollouts given by their tokens' log-ratios; entropy 1 a token; tokens beyond ±0.2 are clipped."""
    length = max(map(len, log_ratios))
    x = np.array([row + [math.nan] * (length - len(row)) for row in log_ratios])
    mask = np.array([[i < len(row) for i in range(length)] for row in log_ratios], np.bool_)
    return rollout_figures(x, np.ones_like(x), mask, np.abs(x) > 0.2)


def diagnosed(log_ratios: list[list[float]], **columns: list) -> dict[str, float]:
    n = len(log_ratios)
    arrays = {"staleness": [0] * n, "fresh": [True] * n, "correct": [False] * n} | columns
    return diagnose(figures_of(log_ratios), **{name: np.array(array) for name, array in arrays.items()})


# ---------------------------------------------------------------- effective sample size


@pytest.mark.parametrize("weights", [(1, 2, 0.5, 0.5), (2, 1, 0.5, 0.5)])
def test_effective_size_when_four_weights_differ_is_the_hand_worked_one(weights) -> None:
    assert effective_sample_fraction(np.log(weights)) == pytest.approx(0.727273, abs=1e-6)
    assert 4 * effective_sample_fraction(np.log(weights)) == pytest.approx(2.909091, abs=1e-6)


def test_effective_size_when_a_policy_is_known_tends_to_its_renyi_divergence() -> None:
    # mu = (.5, .5), pi = (.9, .1): each action once is the population itself.
    fraction = effective_sample_fraction(np.log([0.9 / 0.5, 0.1 / 0.5]))
    assert fraction == pytest.approx(0.609756, abs=1e-6)
    assert fraction == pytest.approx(math.exp(-0.494696), abs=1e-6)
    assert fraction < math.exp(-0.368064)


@given(log_weights, st.floats(-1e5, 1e5))
@settings(deadline=None)
def test_effective_size_when_weights_are_extreme_is_within_its_bounds_and_ignores_scale(values, shift) -> None:
    fraction = effective_sample_fraction(values)
    assert 1 / len(values) <= fraction <= 1
    assert effective_sample_fraction(values + shift) == pytest.approx(fraction, rel=1e-8)
    assert effective_sample_fraction(values[::-1]) == pytest.approx(fraction, rel=1e-12)
    expected = math.exp(2 * logsumexp(values) - logsumexp(2 * values)) / len(values)
    assert fraction == pytest.approx(expected, rel=1e-8)


def test_effective_size_when_weights_are_equal_or_one_rules_is_an_end_of_its_range() -> None:
    assert effective_sample_fraction(np.full(7, -1234.5)) == 1.0
    assert effective_sample_fraction(np.array([1e4, -1e4, 0.0, 0.0])) == 0.25


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"log-weights have shape \(0,\), expected \(n,\) with n >= 1"),
        ([[0.0]], r"log-weights have shape \(1, 1\)"),
        ([0.0, math.nan], "log-weight nan of sample 1 is not finite"),
    ],
)
def test_effective_size_when_weights_cannot_be_used_is_refused(values, message) -> None:
    with pytest.raises(DataError, match=message):
        effective_sample_fraction(np.array(values))


# ---------------------------------------------------------------- a batch


def test_diagnosis_when_one_rollout_moved_has_the_hand_worked_divergences() -> None:
    result = diagnosed([[0.2, -0.1, 0.0, -0.4]])
    assert result["kl_k1"] == pytest.approx(0.075)
    assert result["kl_k2"] == pytest.approx(0.02625)
    assert result["kl_k3"] == pytest.approx(0.024140, abs=1e-6)
    assert result["log_ratio_square"] == pytest.approx(2 * 0.02625)
    assert result["log_ratio_abs"] == pytest.approx(0.175)
    assert result["geometric_ratio"] == pytest.approx(math.exp(-0.075))
    assert result["ratio_max"] == pytest.approx(math.exp(0.2))
    assert result["clip_fraction"] == 0.25
    assert result["kl_sequence_k1"] == pytest.approx(0.3)
    assert result["kl_sequence_k2"] == pytest.approx(0.045)
    assert result["kl_sequence_k3"] == pytest.approx(math.exp(-0.3) - 1 + 0.3)
    assert (result["rollouts"], result["tokens"], result["empty"]) == (1, 4, 0)


def test_diagnosis_when_weights_are_known_has_their_effective_size_and_chi2() -> None:
    ratios = (1, 2, 0.5, 0.5)
    result = diagnosed([[math.log(ratio)] for ratio in ratios])
    for level in ("", "_token"):
        assert result[f"ess{level}_fraction"] == pytest.approx(0.727273, abs=1e-6)
        assert result[f"chi2{level}"] == pytest.approx(0.375)
    assert result["ratio_mean"] == pytest.approx(1.0)
    split = diagnosed([[math.log(ratio) - 0.7, 0.7] for ratio in ratios])
    assert split["ess_fraction"] == pytest.approx(0.727273, abs=1e-6)
    assert split["ess_token_fraction"] == pytest.approx(0.717047, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "k3"), [(0.1, 1.402585), (0.4, 0.316291), (1, 0), (1.8, 0.212213), (3, 0.901388), (6, 3.208241)]
)
def test_diagnosis_when_a_token_has_a_ratio_has_its_k3(ratio, k3) -> None:
    result = diagnosed([[math.log(ratio)]])
    assert result["kl_k3"] == pytest.approx(k3, abs=1e-6)
    assert result["kl_sequence_k3"] == pytest.approx(k3, abs=1e-6)


def test_diagnosis_when_four_tokens_moved_has_the_second_moment_of_m2po() -> None:
    assert diagnosed([[0.05, -0.1], [0.3, -0.6]])["log_ratio_square"] == pytest.approx(0.115625)


def test_diagnosis_when_a_sequence_moved_has_the_geometric_ratio_of_gspo() -> None:
    assert diagnosed([[0.01, -0.02, 0.03, 0.0]])["geometric_ratio"] == pytest.approx(1.005013, abs=1e-6)


def test_diagnosis_when_tokens_are_averaged_matches_brute_force() -> None:
    rng = np.random.default_rng(0)
    rows = [list(rng.normal(0, 0.5, size)) for size in (3, 1, 6, 2)]
    result, x = diagnosed(rows), np.concatenate(rows)
    sums = np.array([sum(row) for row in rows])
    assert result["ess_token_fraction"] == pytest.approx(np.exp(x).sum() ** 2 / np.exp(2 * x).sum() / len(x))
    assert result["ess_fraction"] == pytest.approx(np.exp(sums).mean() ** 2 / np.exp(2 * sums).mean())
    assert result["chi2"] == pytest.approx(np.mean(np.exp(sums) ** 2) - 1)
    assert result["chi2_token"] == pytest.approx(np.mean(np.exp(x) ** 2) - 1)
    assert result["kl_k3"] == pytest.approx(np.mean(np.exp(x) - 1 - x))
    assert result["kl_sequence_k2"] == pytest.approx(np.mean(sums**2) / 2)
    assert result["geometric_ratio"] == pytest.approx(np.mean([np.exp(np.mean(row)) for row in rows]))
    assert result["clip_fraction"] == pytest.approx(np.mean(np.abs(x) > 0.2))
    assert result["kl_k3"] >= 0 and result["entropy"] == 1


def test_diagnosis_when_ages_differ_repeats_itself_for_each_that_occurs() -> None:
    rows = [[0.1], [0.5, 0.2], [-0.3], [0.9]]
    result = diagnosed(
        rows, staleness=[0, 20, 3, 17], fresh=[True, False, False, False], correct=[True, True, False, False]
    )
    assert {name.split(".")[0] for name in result if "." in name} == {"age_0", "age_1_3", "age_16_63"}
    assert result["age_16_63.rollouts"] == 2
    assert result["age_16_63.correct_fraction"] == result["correct_fraction"] == 0.5
    alone = diagnosed([rows[1], rows[3]])
    for name in set(alone) - {"correct_fraction", "fresh_fraction", "entropy_fresh"}:
        if "." not in name:
            assert result[f"age_16_63.{name}"] == pytest.approx(alone[name])
    assert result["tokens"] == sum(result[f"{age}.tokens"] for age in ("age_0", "age_1_3", "age_16_63"))
    assert result["fresh_fraction"] == 0.25


def test_diagnosis_when_fresh_and_replayed_rollouts_meet_tells_their_entropies_apart() -> None:
    figures = figures_of([[0.1], [0.5, 0.2]]) | {"entropy_sum": np.array([2.0, 1.0])}
    columns = {"staleness": np.array([0, 1]), "correct": np.array([True, True])}
    result = diagnose(figures, fresh=np.array([True, False]), **columns)
    assert (result["entropy_fresh"], result["entropy_replayed"], result["entropy"]) == (2.0, 0.5, 1.0)
    assert "entropy_replayed" not in diagnose(figures, fresh=np.array([True, True]), **columns)


def test_diagnosis_when_a_rollout_is_empty_counts_it_and_leaves_it_out() -> None:
    with_empty, without = diagnosed([[0.4, 0.1], [], [-0.3]]), diagnosed([[0.4, 0.1], [-0.3]])
    assert (with_empty["rollouts"], with_empty["empty"]) == (3, 1)
    for name in ("ess_fraction", "kl_sequence_k1", "geometric_ratio", "kl_k3", "chi2"):
        assert with_empty[name] == without[name]


def test_diagnosis_when_nothing_was_trained_on_has_counts_alone() -> None:
    counts = {"rollouts": 2, "tokens": 0, "empty": 2, "correct_fraction": 0}
    ages = {f"age_0.{name}": value for name, value in counts.items()}
    assert diagnosed([[], []]) == counts | ages | {"fresh_fraction": 1}
    nothing = {name: np.zeros(0) for name in FIGURES}
    columns = {"staleness": np.zeros(0, np.int64), "fresh": np.zeros(0, np.bool_), "correct": np.zeros(0, np.bool_)}
    assert diagnose(nothing, **columns) == {"rollouts": 0, "tokens": 0, "empty": 0}


@given(st.lists(st.lists(st.sampled_from([-1e4, -30.0, 0.0, 0.1, 30.0, 1e4]), max_size=4), min_size=1, max_size=6))
@settings(deadline=None)
def test_diagnosis_when_ratios_are_extreme_is_finite(rows) -> None:
    result = diagnosed(rows)
    assert all(math.isfinite(value) for value in result.values())
    if any(rows):
        assert result["kl_k3"] >= 0 and result["kl_sequence_k3"] >= 0
        assert 0 < result["ess_token_fraction"] <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl_sum": None}, "figures lack 'kl_sum', got"),
        ({"kl_sum": np.zeros(3)}, r"figure 'kl_sum' has shape \(3,\), expected \(2,\)"),
        ({"kl_sum": np.array([0.0, math.inf])}, "figure 'kl_sum' of rollout 1 is inf, expected a finite number"),
    ],
)
def test_diagnosis_when_a_figure_cannot_be_used_is_refused(change, message) -> None:
    figures = {name: value for name, value in (figures_of([[0.1], [0.2]]) | change).items() if value is not None}
    flags = np.array([True, False])
    with pytest.raises(DataError, match=message):
        diagnose(figures, staleness=np.array([0, 1]), fresh=flags, correct=flags)


def test_diagnosis_when_flags_have_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"correct has shape \(3,\), expected \(2,\)"):
        diagnosed([[0.1], [0.2]], correct=[True] * 3)


# ---------------------------------------------------------------- ages


def test_ages_when_sorted_into_buckets_fall_between_the_edges() -> None:
    buckets = age_buckets(np.array([64, 0, 3, 1, 15, 4, 1000, 63, 16]))
    assert {name: rows.tolist() for name, rows in buckets.items()} == {
        "age_0": [1],
        "age_1_3": [2, 3],
        "age_4_15": [4, 5],
        "age_16_63": [7, 8],
        "age_64_up": [0, 6],
    }
    assert list(age_buckets(np.array([5, 0]), (0, 5))) == ["age_0_4", "age_5_up"]
    assert list(age_buckets(np.array([5]), (0,))) == ["age_0_up"]


@pytest.mark.parametrize("edges", [(), (1, 2), (0, 4, 4), (0, 5, 3)])
def test_ages_when_edges_do_not_rise_from_zero_are_refused(edges) -> None:
    with pytest.raises(ConfigError, match=r"age edges must rise from 0, got"):
        age_buckets(np.array([1]), edges)


def test_ages_when_one_is_negative_are_refused() -> None:
    with pytest.raises(DataError, match="staleness of rollout 1 is -2, expected at least 0"):
        age_buckets(np.array([0, -2]))


def test_rollout_figures_when_log_ratios_are_float16_do_not_overflow() -> None:
    every = np.ones((1, 2), np.bool_)
    figures = rollout_figures(np.full((1, 2), 30, np.float16), np.zeros((1, 2)), every, ~every)
    assert figures["ratio_sum"][0] == pytest.approx(2 * math.exp(30))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (1, np.zeros((2, 1)), r"entropy_BL has shape \(2, 1\), expected \(B, L\), \(2, 3\) of mask_BL"),
        (2, np.ones((2, 3), np.int64), "mask_BL is int64, expected bool"),
        (3, np.zeros((2, 3)), "clipped_BL is float64, expected bool"),
    ],
)
def test_rollout_figures_when_an_array_would_broadcast_or_is_no_mask_says_which(place, value, message) -> None:
    arrays = [np.zeros((2, 3)), np.zeros((2, 3)), np.ones((2, 3), np.bool_), np.zeros((2, 3), np.bool_)]
    arrays[place] = value
    with pytest.raises(DataError, match=message):
        rollout_figures(*arrays)


@pytest.mark.parametrize("name", ["fresh", "correct"])
def test_diagnose_when_a_mask_is_of_whole_numbers_does_not_take_it_for_row_numbers(name) -> None:
    every = np.ones((3, 1), np.bool_)
    figures = rollout_figures(np.zeros((3, 1)), np.zeros((3, 1)), every, ~every)
    masks = {"fresh": np.ones(3, np.bool_), "correct": np.ones(3, np.bool_), name: np.array([1, 0, 1])}
    with pytest.raises(DataError, match=f"{name} is int64, expected bool"):
        diagnose(figures, staleness=np.zeros(3, np.int64), **masks)
