"""Smooth gates: SAPO, GIPO and ExGRPO's shaping by hand."""

import math

import pytest
from cases import one_token

from ostinato.errors import ConfigError
from ostinato.losses import gipo, sapo, shaped_importance


@pytest.mark.parametrize(
    ("ratio", "advantage", "gate"),
    [
        (1.0, 1, 2.0),
        (1.5, 1, 2.489838),
        (0.5, 1, 1.510163),
        (1.0, -1, 1.904762),
        (1.5, -1, 2.393585),
        (0.5, -1, 1.415938),
    ],
)
def test_sapo_when_the_ratio_moves_bends_the_surrogate(ratio, advantage, gate) -> None:
    loss, slope, _ = one_token(sapo, ratio, float(advantage))
    assert loss == pytest.approx(-gate * advantage, abs=1e-6)
    tau = 1.0 if advantage > 0 else 1.05
    open_share = gate * tau / 4
    assert slope == pytest.approx(-advantage * 4 * open_share * (1 - open_share) * ratio, abs=1e-6)


@pytest.mark.parametrize(
    ("log_ratio", "trust"), [(0.0, 1.0), (0.25, 0.882497), (0.5, 0.606531), (1.0, 0.135335), (-0.5, 0.606531)]
)
def test_gipo_when_sigma_is_one_half_has_the_hand_worked_trust(log_ratio, trust) -> None:
    loss, slope, _ = one_token(gipo, math.exp(log_ratio), 2.0, sigma=0.5)
    assert (loss, slope) == pytest.approx((-2 * trust * math.exp(log_ratio),) * 2, abs=4e-6)


@pytest.mark.parametrize(("ratio", "shaped"), [(0.01, 0.0909), (0.1, 0.5), (0.5, 0.8333), (1.0, 0.9091), (2.0, 0.9524)])
def test_shaped_importance_when_the_ratio_grows_saturates(ratio, shaped) -> None:
    loss, slope, _ = one_token(shaped_importance, ratio, 1.0)
    assert loss == pytest.approx(-shaped, abs=5e-5)
    assert slope == pytest.approx(-ratio * 0.1 / (ratio + 0.1) ** 2)


@pytest.mark.parametrize(("ratio", "derivative"), [(1.0, 0.082645), (0.1, 2.5)])
def test_shaped_importance_when_differentiated_in_the_ratio_has_the_hand_worked_slope(ratio, derivative) -> None:
    assert one_token(shaped_importance, ratio, 1.0)[1] / ratio == pytest.approx(-derivative, abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (sapo, {"positive_temperature": 0.0}, "positive_temperature must be above 0, got 0.0"),
        (sapo, {"negative_temperature": -1.0}, "negative_temperature must be above 0, got -1.0"),
        (gipo, {"sigma": math.nan}, "sigma must be above 0, got nan"),
        (shaped_importance, {"offset": 0.0}, "offset must be above 0, got 0.0"),
    ],
)
def test_settings_when_impossible_are_refused(loss, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        one_token(loss, 1.0, 1.0, **settings)
