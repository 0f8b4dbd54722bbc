"""PPO-EWMA's parameters against the published recursion and its closed form."""

import pytest
import torch

from ostinato.errors import ConfigError, DataError
from ostinato.losses import ProximalAverage


def test_average_when_decay_is_nine_tenths_has_the_published_numbers() -> None:
    average = ProximalAverage({"w": torch.tensor([0.0], dtype=torch.float64)}, decay=0.9)
    found = []
    for theta in (1.0, 2.0):
        average.update({"w": torch.tensor([theta], dtype=torch.float64)})
        found.append(float(average.parameters["w"]))
    assert found == pytest.approx([0.526316, 1.070111], abs=5e-7)


def test_average_when_written_out_is_the_weighted_mean_of_all_parameters() -> None:
    rng = torch.Generator().manual_seed(0)
    thetas = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    average = ProximalAverage({"w": thetas[0]}, decay=0.8)
    for theta in thetas[1:]:
        average.update({"w": theta})
    weights = 0.8 ** torch.arange(19, -1, -1, dtype=torch.float64)
    assert torch.allclose(average.parameters["w"], (weights[:, None] * thetas).sum(0) / weights.sum())
    assert average.weight == pytest.approx(float(weights.sum()))
    assert not torch.equal(average.parameters["w"], thetas[0])  # what was given is not written to
    assert torch.equal(thetas[0], torch.randn(20, 3, generator=rng.manual_seed(0), dtype=torch.float64)[0])


def test_average_when_decay_is_zero_is_the_last_parameters() -> None:
    average = ProximalAverage({"w": torch.tensor([5.0])}, decay=0.0)
    average.update({"w": torch.tensor([1.0])})
    assert average.parameters["w"].tolist() == [1.0]


def test_average_when_settings_or_parameters_do_not_fit_refuses() -> None:
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="decay in"):
            ProximalAverage({}, decay=decay)
    with pytest.raises(DataError, match="names and shapes"):
        ProximalAverage({"w": torch.zeros(2)}, decay=0.5).update({"v": torch.zeros(2)})
