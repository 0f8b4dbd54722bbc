"""The gate on gradient energy: the hand-worked surge, what it remembers, and that it never waits forever."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DataError
from ostinato.governors import GradientGate, GradientGateSettings

ENERGIES = (1.0, 1.1, 0.9, 1.0)


def gate_after(energies: tuple[float, ...], **options: float) -> GradientGate:
    gate = GradientGate(GradientGateSettings(**options))
    assert [gate.admit(energy) for energy in energies] == [True] * len(energies)
    return gate


@pytest.mark.parametrize("tau_z", [0.1, 0.5, 1.0, 4.24])
def test_gate_when_energy_surges_drops_the_gradient_at_the_hand_worked_z(tau_z) -> None:
    gate = gate_after(ENERGIES, tau_z=tau_z)
    assert gate.z(1.6) == pytest.approx(4.2426, abs=1e-4)
    assert gate.metrics()["energy_increment_mean"] == pytest.approx(0.0, abs=1e-12)
    assert gate.metrics()["energy_increment_std"] == pytest.approx(0.141421, abs=1e-6)
    assert not gate.admit(1.6)
    assert gate.metrics()["gradients_dropped"] == 1


def test_gate_when_its_threshold_is_higher_or_energy_falls_admits() -> None:
    assert gate_after(ENERGIES, tau_z=4.25).admit(1.6)
    assert gate_after(ENERGIES, tau_z=0.1).admit(0.2)


def test_gate_when_it_has_dropped_admits_the_next_and_learns_nothing_from_the_surge() -> None:
    gate = gate_after(ENERGIES)
    before = gate.metrics()
    assert not gate.admit(1.6)
    assert gate.admit(50.0)
    after = gate.metrics()
    assert after | {"gradients_dropped": 0} == before
    assert gate.z(51.0) == pytest.approx(1.0 / 0.141421, rel=1e-5)


def test_gate_when_a_batch_is_new_compares_it_with_nothing() -> None:
    gate = gate_after(ENERGIES)
    assert gate.admit(1.6, new_batch=True)
    assert gate.metrics()["energy_increment_std"] == pytest.approx(0.141421, abs=1e-6)
    assert not gate.admit(2.0)


def test_gate_when_increments_are_few_or_all_equal_drops_nothing() -> None:
    gate_after((1.0, 1.1, 0.9, 1e6), min_increments=3)
    assert not gate_after((1.0, 1.1, 0.9), min_increments=2).admit(1e6)
    gate_after((1.0, 2.0, 3.0, 4.0, 5.0, 100.0))


@given(st.lists(st.floats(0, 100), min_size=3, max_size=20), st.floats(0.2, 1.0))
def test_gate_when_it_admits_all_has_the_weighted_mean_and_deviation_of_the_increments(energies, decay) -> None:
    gate = gate_after(tuple(energies), tau_z=math.inf, decay=decay)
    increments = np.diff(energies)
    weights = decay ** np.arange(len(increments))[::-1]
    mean = np.average(increments, weights=weights)
    assert gate.metrics()["energy_increment_mean"] == pytest.approx(mean, abs=1e-9)
    deviation = math.sqrt(np.average((increments - mean) ** 2, weights=weights))
    assert gate.metrics()["energy_increment_std"] == pytest.approx(deviation, abs=1e-6)


@given(st.lists(st.floats(0, 1e100), min_size=1, max_size=30))
def test_gate_when_followed_never_drops_twice_in_a_row(energies) -> None:
    gate = GradientGate(GradientGateSettings(tau_z=0.0))
    admitted = [gate.admit(energy) for energy in energies]
    assert not any(not one and not other for one, other in pairwise(admitted))
    assert all(math.isfinite(value) for value in gate.metrics().values())


def test_state_when_it_went_through_json_goes_on_as_before() -> None:
    one, other = gate_after(ENERGIES), GradientGate(GradientGateSettings())
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [other.admit(energy) for energy in (1.05, 1.9, 7.0)] == [one.admit(energy) for energy in (1.05, 1.9, 7.0)]
    assert other.state_dict() == one.state_dict()
    with pytest.raises(DataError, match="gradient gate state lacks 'mean'"):
        other.load_state_dict({name: value for name, value in one.state_dict().items() if name != "mean"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_z": -1.0}, r"tau_z must be at least 0, got -1\.0"),
        ({"tau_z": math.nan}, "tau_z must be a finite number, got nan"),
        ({"min_increments": 1}, "min_increments must be at least 2, got 1"),
        ({"decay": 0.0}, r"decay must be within \(0, 1\], got 0\.0"),
    ],
)
def test_settings_when_impossible_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        GradientGateSettings(**options)


@pytest.mark.parametrize("energy", [math.nan, math.inf, -1.0, 1e101])
def test_energy_when_it_is_none_is_refused_and_not_remembered(energy) -> None:
    gate = gate_after(ENERGIES)
    before = gate.state_dict()
    with pytest.raises(DataError, match=r"gradient energy must be within \[0, 1e\+100\], got"):
        gate.admit(energy, new_batch=True)
    assert gate.state_dict() == before
