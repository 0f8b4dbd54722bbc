"""What a trainer is told between the backward pass and the optimizer."""

import numpy as np
import pytest

from ostinato.config import config_to_dict
from ostinato.errors import DataError
from ostinato.governors import (
    GradientGateSettings,
    LearningRateSettings,
    ReuseSettings,
    StepGovernor,
    StepSettings,
    reuse_governor,
    step_governor,
)
from ostinato.recipe import config_from_dict
from ostinato.stats import rollout_figures

EVERY = np.ones((4, 1), bool)
FIGURES = rollout_figures(np.log([[2.0], [1.0], [0.5], [0.5]]), np.zeros((4, 1)), EVERY, ~EVERY)
NEW, USED = np.zeros(4, np.int64), np.ones(4, np.int64)


def build(**sections):
    return config_from_dict({"loop": {"train_steps": 5}} | sections)


def test_decision_when_all_is_off_is_a_whole_step_without_numbers() -> None:
    decision = StepGovernor().decide(FIGURES, uses=NEW)
    assert (decision.learning_rate_scale, decision.dropped, decision.metrics) == (1.0, False, {})


def test_decision_when_the_learning_rate_is_governed_is_the_root_of_the_sample_size() -> None:
    # weights 2, 1, .5, .5: ESS = 16 / 5.5 of 4
    decision = StepGovernor(StepSettings(LearningRateSettings())).decide(FIGURES, uses=USED)
    assert decision.learning_rate_scale == pytest.approx((16 / 5.5 / 4) ** 0.5)
    assert decision.metrics == {"learning_rate_scale": decision.learning_rate_scale}


def dropped(energies, uses, epochs):
    governor = StepGovernor(StepSettings(gate=GradientGateSettings(0.5, min_increments=2), epochs=epochs))
    steps = zip(energies, uses, strict=True)
    return [governor.decide(FIGURES, uses=used, energy=float(energy)).dropped for energy, used in steps]


def test_gate_when_a_batch_is_new_has_nothing_to_compare_its_first_pass_with() -> None:
    energies = [10, 11, 13, 14, 90]
    assert dropped(energies, [USED] * 5, epochs=1) == [False] * 4 + [True]
    assert dropped(energies, [NEW] * 5, epochs=1) == [False] * 4 + [True]  # steps are compared with the ones before
    assert dropped(energies, [NEW, USED, USED, USED, NEW], epochs=4) == [False] * 5
    assert dropped(energies, [NEW, USED, USED, USED, USED], epochs=5) == [False] * 4 + [True]


def test_split_when_every_third_step_is_asked_for_comes_then_and_after_a_restart() -> None:
    governor = StepGovernor(StepSettings(gradient_split_every=3))
    seen = []
    for step in range(7):
        seen.append(governor.splits)
        governor.decide(FIGURES, uses=NEW)
        if step == 3:
            state = governor.state_dict()
            governor = StepGovernor(governor.settings)
            governor.load_state_dict(state)
    assert seen == [False, False, True, False, False, True, False]
    with pytest.raises(DataError, match="step governor state lacks steps or gate"):
        StepGovernor(StepSettings(gate=GradientGateSettings())).load_state_dict({"steps": 3, "gate": None})


def test_governors_when_chosen_in_a_recipe_have_its_settings() -> None:
    plain = build()
    assert step_governor(plain).settings == StepSettings() and reuse_governor(plain) is None
    rules = {
        "ratio_bound": 3.0,
        "ratio_level": "sequence",
        "ess_bound": 0.3,
        "ess_hysteresis": 0.1,
        "min_samples": 8,
        "window": 32,
        "learning_rate": "linear",
        "learning_rate_base": 0.55,
        "gate_z": 0.5,
        "gate_min_increments": 4,
        "gate_decay": 0.9,
    }
    config = build(governors=rules, diagnostics={"gradient_split_every": 7})
    assert config_to_dict(config)["governors"] == rules
    expected = StepSettings(LearningRateSettings(0.55, "linear"), GradientGateSettings(0.5, 4, 0.9), 7, 1)
    assert step_governor(config).settings == expected
    governor = reuse_governor(config)
    assert governor is not None
    assert governor.settings == ReuseSettings(3.0, "sequence", 0.3, 0.1, 8, 32)


def test_governors_when_nothing_is_reused_are_not_built() -> None:
    rules = {"ratio_bound": 3.0, "gate_z": 0.5}
    queue = {"kind": "queue", "capacity": 180}
    once = build(governors=rules, buffer=queue)
    assert reuse_governor(once) is None and step_governor(once).settings.gate is None
    epochs = build(governors=rules, buffer=queue, loop={"train_steps": 5, "epochs": 4})
    assert reuse_governor(epochs) is None and step_governor(epochs).settings.gate == GradientGateSettings(0.5)
    assert step_governor(epochs).settings.epochs == 4
