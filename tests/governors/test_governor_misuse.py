"""Settings and states that no governor can work with: one line each, and nothing is taken over."""

import math

import numpy as np
import pytest

from ostinato.errors import ConfigError, DataError
from ostinato.governors import (
    GradientGate,
    GradientGateSettings,
    LearningRateSettings,
    ReuseGovernor,
    ReuseSettings,
    StepSettings,
)
from ostinato.stats import AgeStatistics, diagnose, rollout_figures

SETTINGS = [
    (ReuseSettings, "ratio_bound"),
    (ReuseSettings, "ess_bound"),
    (ReuseSettings, "ess_hysteresis"),
    (ReuseSettings, "min_samples"),
    (ReuseSettings, "window"),
    (ReuseSettings, "ratio_level"),
    (LearningRateSettings, "base"),
    (LearningRateSettings, "rule"),
    (GradientGateSettings, "tau_z"),
    (GradientGateSettings, "min_increments"),
    (GradientGateSettings, "decay"),
    (StepSettings, "gradient_split_every"),
    (StepSettings, "epochs"),
    (AgeStatistics, "window"),
]


@pytest.mark.parametrize("value", ["a", [1.0], True, math.nan, math.inf, -1, 10**400, 1j])
@pytest.mark.parametrize(("kind", "name"), SETTINGS)
def test_setting_when_impossible_is_named_in_one_line(kind, name, value) -> None:
    if (name, value) == ("tau_z", math.inf):
        return  # a gate that drops nothing
    with pytest.raises(ConfigError, match=name) as caught:
        kind(**{name: value})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize("window", [2.5, 100.0])
def test_counts_when_given_as_fractions_are_refused(window) -> None:
    with pytest.raises(ConfigError, match="window must be an integer"):
        ReuseSettings(window=window)


def figures(n: int = 4) -> dict[str, np.ndarray]:
    every = np.ones((n, 1), bool)
    return rollout_figures(np.full((n, 1), 0.1), np.zeros((n, 1)), every, ~every)


@pytest.mark.parametrize(
    "damage",
    [
        {"removed": {}},
        {"removed": None},
        {"closed": 3},
        {"ages": {"edges": [0, 1, 4, 16, 64], "kept": {"age_0": "text"}}},
        {"ages": {"edges": [0, 1, 4, 16, 64], "kept": {"age_0": [[0.0, 1.0, math.nan, 0.0, 0.0]]}}},
        {"ages": {"edges": [0, 1, 4, 16, 64], "kept": {"age_0": [[0.0, 0.0, 0.0, 0.0, 0.0]]}}},
        {"ages": {"edges": [0, 1, 4, 16, 64], "kept": {"age_0": [[1.0]]}}},
    ],
)
def test_reuse_state_when_damaged_is_refused(damage) -> None:
    governor = ReuseGovernor(ReuseSettings(ess_bound=0.3))
    governor.remove(figures(), staleness=np.zeros(4, np.int64), rollout_ids=np.arange(4))
    before = governor.state_dict()
    with pytest.raises(DataError):
        governor.load_state_dict({**before, **damage})
    assert governor.state_dict() == before


@pytest.mark.parametrize("value", ["a", math.nan, True, [1], None])
@pytest.mark.parametrize("name", ["seen", "weight", "mean", "squares", "dropped"])
def test_gate_state_when_damaged_is_refused(name, value) -> None:
    gate = GradientGate(GradientGateSettings())
    gate.admit(1.0)
    before = gate.state_dict()
    with pytest.raises(DataError, match=name):
        gate.load_state_dict({**before, name: value})
    assert gate.state_dict() == before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log_ratio_sum", 1e200, "from -1e\\+100"),
        ("tokens", -1.0, "from 0 to"),
        ("clipped", -1.0, "from 0 to"),
        ("ratio_square_sum", 0.0, "tokens and no ratio"),
        ("entropy_sum", math.nan, "is nan"),
    ],
)
def test_figures_when_no_trainer_could_have_said_them_are_refused(name, value, message) -> None:
    told = {**figures(), name: np.array([0.1, 0.1, 0.1, value]) if name != "tokens" else np.array([1, 1, 1, value])}
    if name == "ratio_square_sum":
        told[name] = np.array([1.0, 1.0, 1.0, value])
    flags = np.ones(4, bool)
    with pytest.raises(DataError, match=message):
        diagnose(told, staleness=np.zeros(4, np.int64), fresh=flags, correct=flags)
