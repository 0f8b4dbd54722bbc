"""What is not drawn again: single rollouts and whole ages, with hysteresis, counted and resumable."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DataError
from ostinato.governors import ReuseGovernor, ReuseSettings
from ostinato.stats import rollout_figures

AGES = ReuseSettings(ess_bound=0.3, ess_hysteresis=0.2, min_samples=4, window=4)


def figures_of(log_ratio: list[float], tokens: int = 4) -> dict[str, np.ndarray]:
    """Rollouts whose log-ratio is spread evenly over their tokens."""
    x = np.repeat(np.array(log_ratio)[:, None] / tokens, tokens, axis=1)
    return rollout_figures(x, np.zeros_like(x), np.ones(x.shape, np.bool_), np.zeros(x.shape, np.bool_))


def removed(governor: ReuseGovernor, log_ratio: list[float], *, age: int = 5, first: int = 0) -> list[int]:
    n = len(log_ratio)
    ids = np.arange(first, first + n)
    return governor.remove(figures_of(log_ratio), staleness=np.full(n, age), rollout_ids=ids).tolist()


def ratios(*ratio: float) -> list[float]:
    return [math.log(r) for r in ratio]


def test_governor_when_nothing_is_set_removes_nothing() -> None:
    governor = ReuseGovernor(ReuseSettings())
    assert removed(governor, [-100.0, 100.0, 0.0] * 30) == []
    assert set(governor.metrics().values()) == {0}


@pytest.mark.parametrize(
    ("level", "expected"),
    [("geometric", [0, 4]), ("sequence", [0, 1, 3, 4])],
)
def test_governor_when_a_rollouts_ratio_leaves_the_bound_on_either_side_removes_it(level, expected) -> None:
    governor = ReuseGovernor(ReuseSettings(ratio_bound=3.0, ratio_level=level))
    far, near = 4 * math.log(3.01), 4 * math.log(2.99)
    assert removed(governor, [far, near, math.log(2.99), -near, -far]) == expected
    assert governor.metrics() == {
        "reuse.removed_ratio": len(expected),
        "reuse.removed_age": 0,
        "reuse.closed_ages": 0,
    }


@given(st.lists(st.sampled_from([-1e4, -5.0, 0.0, 5.0, 1e4]), min_size=1, max_size=8), st.floats(1.01, 1e6))
@settings(deadline=None)
def test_governor_when_ratios_are_extreme_compares_them_in_log_space(values, bound) -> None:
    figures = figures_of(values)
    figures["log_ratio_sum"] = np.array(values)
    ids = np.arange(len(values))
    governor = ReuseGovernor(ReuseSettings(ratio_bound=bound, ratio_level="sequence"))
    gone = governor.remove(figures, staleness=np.zeros(len(ids), np.int64), rollout_ids=ids)
    assert gone.tolist() == [i for i, value in enumerate(values) if abs(value) > math.log(bound)]


def test_age_when_its_samples_are_worth_too_little_closes_and_opens_above_the_bound_again() -> None:
    governor = ReuseGovernor(AGES)
    assert removed(governor, ratios(1, 1, 1, 1)) == []
    # ESS / 4 = (1 + 1 + 1 + 40)^2 / (4 * 1603) = .288: closed, all of this age go.
    assert removed(governor, ratios(1, 1, 1, 40), first=10) == [10, 11, 12, 13]
    assert governor.closed == ("age_4_15",)
    # (2 + 1 + .5 + 8)^2 / (4 * 69.25) = .477, above the bound and below .5: still closed.
    assert removed(governor, ratios(2, 1, 0.5, 8), first=20) == [20, 21, 22, 23]
    # 5 * 5 / (4 * 4) and more: .727 opens it.
    assert removed(governor, ratios(1, 2, 0.5, 0.5), first=30) == []
    # Above the bound, an open age stays open.
    assert removed(governor, ratios(2, 1, 0.5, 8), first=40) == []
    assert governor.metrics() == {"reuse.removed_ratio": 0, "reuse.removed_age": 8, "reuse.closed_ages": 0}


def test_age_when_it_has_too_few_samples_is_not_judged() -> None:
    governor = ReuseGovernor(AGES)
    assert removed(governor, ratios(1, 1, 40)) == []
    assert removed(governor, ratios(1), first=5) == [5]


def test_ages_when_one_is_closed_leave_the_others_open() -> None:
    governor = ReuseGovernor(AGES)
    ages, ids = np.array([0, 5] * 4), np.arange(8)
    gone = governor.remove(figures_of(ratios(1, 1, 1, 1, 1, 1, 1, 90)), staleness=ages, rollout_ids=ids)
    assert gone.tolist() == [1, 3, 5, 7]


def test_rollout_when_drawn_twice_or_for_two_reasons_is_named_and_counted_once() -> None:
    governor = ReuseGovernor(ReuseSettings(ratio_bound=3.0, ratio_level="sequence", ess_bound=0.3, min_samples=4))
    ids = np.array([7, 7, 3, 5, 3])
    gone = governor.remove(figures_of(ratios(90, 90, 1, 1, 1)), staleness=np.full(5, 2), rollout_ids=ids)
    assert gone.tolist() == [7]
    gone = governor.remove(figures_of(ratios(9e4, 9e4, 1, 1, 1)), staleness=np.full(5, 2), rollout_ids=ids)
    assert gone.tolist() == [3, 5, 7]
    assert governor.metrics() == {"reuse.removed_ratio": 2, "reuse.removed_age": 2, "reuse.closed_ages": 1}


def test_rollout_when_empty_is_never_outside() -> None:
    x = np.zeros((2, 0))
    figures = rollout_figures(x, x, x.astype(np.bool_), x.astype(np.bool_))
    governor = ReuseGovernor(ReuseSettings(ratio_bound=1.5, ess_bound=0.5, min_samples=2))
    assert governor.remove(figures, staleness=np.array([0, 9]), rollout_ids=np.array([1, 2])).tolist() == []


def test_state_when_it_went_through_json_goes_on_as_before() -> None:
    one, other = ReuseGovernor(AGES), ReuseGovernor(AGES)
    removed(one, ratios(1, 1, 1, 40))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.closed == one.closed == ("age_4_15",)
    for governor in (one, other):
        assert removed(governor, ratios(2, 1, 0.5, 8), first=20) == [20, 21, 22, 23]
    assert other.metrics() == one.metrics()
    assert other.state_dict() == one.state_dict()
    off = ReuseGovernor(ReuseSettings())
    off.load_state_dict(one.state_dict())
    assert removed(off, ratios(1, 1, 1, 40)) == []
    with pytest.raises(DataError, match="reuse governor state lacks 'closed'"):
        other.load_state_dict({"ages": one.state_dict()["ages"]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio_bound": 1.0}, r"ratio_bound must be above 1, got 1\.0"),
        ({"ratio_bound": math.inf}, "ratio_bound must be a finite number, got inf"),
        ({"ratio_level": "token"}, "ratio_level must be one of 'geometric', 'sequence', got 'token'"),
        ({"ess_bound": 0.0}, r"expected 0 < ess_bound <= 1 - ess_hysteresis, got ess_bound 0\.0"),
        ({"ess_bound": 0.9, "ess_hysteresis": 0.2}, r"got ess_bound 0\.9 with ess_hysteresis 0\.2"),
        ({"ess_hysteresis": -0.1}, r"ess_hysteresis must be at least 0, got -0\.1"),
        ({"min_samples": 1}, "min_samples must be at least 2, got 1"),
        ({"min_samples": 9, "window": 8}, "window must be at least 9, got 8"),
    ],
)
def test_settings_when_impossible_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ReuseSettings(**options)


def test_batch_when_it_cannot_be_used_is_refused_and_not_remembered() -> None:
    governor = ReuseGovernor(AGES)
    before = governor.state_dict()
    ids = np.arange(2)
    with pytest.raises(DataError, match=r"staleness has shape \(3,\), expected \(2,\)"):
        governor.remove(figures_of([0.0, 0.0]), staleness=np.zeros(3, np.int64), rollout_ids=ids)
    bad = figures_of([0.0, 0.0]) | {"log_ratio_sum": np.array([0.0, math.inf])}
    with pytest.raises(DataError, match="figure 'log_ratio_sum' of rollout 1 is inf"):
        governor.remove(bad, staleness=np.zeros(2, np.int64), rollout_ids=ids)
    assert governor.state_dict() == before
