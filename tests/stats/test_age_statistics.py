"""What a run has seen of each age: exact over its window, resumable, with the drift that was put in."""

import json
import math

import numpy as np
import pytest

from ostinato.errors import ConfigError, DataError
from ostinato.stats import AgeStatistics, diagnose, rollout_figures


def figures_of(log_ratio: np.ndarray, tokens: int = 2) -> dict[str, np.ndarray]:
    """Rollouts whose log-ratio is spread evenly over their tokens."""
    x = np.repeat(log_ratio[:, None] / max(tokens, 1), tokens, axis=1)
    return rollout_figures(x, np.zeros_like(x), np.ones(x.shape, np.bool_), np.zeros(x.shape, np.bool_))


def batch(seed: int, n: int = 12) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 70, n)
    return figures_of(rng.normal(-0.01 * age, 0.1 * np.sqrt(age))), age


def test_ages_when_two_batches_fit_the_window_have_the_numbers_of_their_union() -> None:
    statistics = AgeStatistics()
    for seed in (1, 2):
        statistics.record(*batch(seed))
    (one, age), (other, more) = batch(1), batch(2)
    union = {name: np.concatenate([one[name], other[name]]) for name in one}
    ages, flags = np.concatenate([age, more]), np.zeros(24, np.bool_)
    expected = diagnose(union, staleness=ages, fresh=flags, correct=flags)
    summary = statistics.summary()
    assert list(summary) == list(dict.fromkeys(name.split(".")[0] for name in expected if "." in name))
    for bucket, numbers in summary.items():
        for name in ("rollouts", "kl_k3", "kl_sequence_k1", "log_ratio_square", "ess_fraction"):
            assert numbers[name] == pytest.approx(expected[f"{bucket}.{name}"], rel=1e-12), (bucket, name)
        assert numbers["weight_variance"] == pytest.approx(1 / numbers["ess_fraction"] - 1)
    assert summary["age_64_up"]["age"] == pytest.approx(ages[ages >= 64].mean())


def test_weight_variance_when_weights_are_known_is_their_relative_variance() -> None:
    statistics, weights = AgeStatistics(), np.array([2.0, 1.0, 0.5, 0.5])
    statistics.record(figures_of(np.log(weights)), np.array([5] * 4))
    numbers = statistics.summary()["age_4_15"]
    assert numbers["weight_variance"] == pytest.approx(weights.var() / weights.mean() ** 2) == pytest.approx(0.375)


def test_window_when_it_is_full_forgets_the_earliest() -> None:
    statistics = AgeStatistics(window=3)
    statistics.record(figures_of(np.array([1e4, 0.0])), np.array([1, 1]))
    assert statistics.summary()["age_1_3"]["ess_fraction"] == 0.5
    statistics.record(figures_of(np.array([0.0, 0.0, 0.3])), np.array([1, 1, 20]))
    assert statistics.summary()["age_1_3"] == {
        "rollouts": 3,
        "age": 1,
        "kl_k3": 0,
        "kl_sequence_k1": 0,
        "log_ratio_square": 0,
        "ess_fraction": 1,
        "weight_variance": 0,
    }
    assert statistics.summary()["age_16_63"]["rollouts"] == 1


def test_drift_when_divergence_grows_with_age_is_its_slope() -> None:
    statistics = AgeStatistics()
    assert statistics.drift() is None
    statistics.record(figures_of(np.zeros(2)), np.array([0, 0]))
    assert statistics.drift() is None
    age = np.array([0, 2, 10, 40])
    statistics.record(figures_of(-0.03 * age), age)
    assert statistics.drift() == pytest.approx(0.03)
    x = np.array([0.2, -1.0])
    statistics.record(figures_of(x), np.array([3, 5]))
    ages, log_ratio = np.concatenate([age, [3, 5]]), np.concatenate([-0.03 * age, x])
    assert statistics.drift() == pytest.approx(np.linalg.lstsq(ages[:, None], -log_ratio, rcond=None)[0][0])


def test_ages_when_rollouts_are_empty_leave_them_out() -> None:
    statistics = AgeStatistics()
    statistics.record(figures_of(np.zeros(2), tokens=0), np.array([0, 9]))
    assert statistics.summary() == {}
    assert statistics.drift() is None


def test_state_when_it_went_through_json_goes_on_as_before() -> None:
    one, other = AgeStatistics(window=5), AgeStatistics(window=5)
    one.record(*batch(3))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for statistics in (one, other):
        statistics.record(*batch(4))
    assert other.summary() == one.summary()
    assert other.drift() == one.drift()
    smaller = AgeStatistics(window=1)
    smaller.load_state_dict(one.state_dict())
    assert {numbers["rollouts"] for numbers in smaller.summary().values()} == {1}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"edges": [0, 2]}, r"age statistics have edges \[0, 1, 4, 16, 64\], the state has \[0, 2\]"),
        ({"edges": [0, 1, 4, 16, 64], "kept": {"age_7": []}}, r"'age_7': got shape \(0,\), expected \(n, 5\)"),
        ({"edges": [0, 1, 4, 16, 64], "kept": {"age_0": [[1.0]]}}, r"'age_0': got shape \(1, 1\), expected \(n, 5\)"),
    ],
)
def test_state_when_it_is_of_other_statistics_is_refused(state, message) -> None:
    with pytest.raises(DataError, match=message):
        AgeStatistics().load_state_dict(state)


def test_settings_when_impossible_are_refused() -> None:
    with pytest.raises(ConfigError, match="window must be at least 1, got 0"):
        AgeStatistics(window=0)
    with pytest.raises(ConfigError, match="age edges must rise from 0"):
        AgeStatistics(edges=(1, 4))


def test_batch_when_it_cannot_be_used_changes_nothing() -> None:
    statistics = AgeStatistics()
    statistics.record(*batch(1))
    before = statistics.state_dict()
    figures, age = batch(2)
    figures["kl_sum"][3] = math.nan
    with pytest.raises(DataError, match="figure 'kl_sum' of rollout 3 is nan"):
        statistics.record(figures, age)
    with pytest.raises(DataError, match="staleness of rollout 0 is -1"):
        statistics.record(batch(2)[0], np.r_[-1, age[1:]])
    assert statistics.state_dict() == before
