"""AES against its published examples."""

import pytest

from ostinato.errors import DataError
from ostinato.stats import accuracy_efficiency_score

STRICT = {"cost_weight": 1.0, "gain_weight": 5.0, "loss_weight": 10.0}


@pytest.mark.parametrize(
    ("accuracy", "cost", "usual", "strict"),
    [(0.55, 900, 0.40, 0.60), (0.45, 900, -0.40, -0.90), (0.55, 1200, 0.10, 0.30), (0.5, 1000, 0.0, 0.0)],
)
def test_score_when_the_baseline_is_half_right_at_a_thousand_tokens(accuracy, cost, usual, strict) -> None:
    assert accuracy_efficiency_score(accuracy, cost, 0.5, 1000) == pytest.approx(usual)
    assert accuracy_efficiency_score(accuracy, cost, 0.5, 1000, **STRICT) == pytest.approx(strict)


@pytest.mark.parametrize("values", [(0.5, 1, 0, 1), (0.5, 1, 0.5, 0), (float("nan"), 1, 0.5, 1), (-0.1, 1, 0.5, 1)])
def test_score_when_nothing_can_be_compared_refuses(values) -> None:
    with pytest.raises(DataError, match="the baseline's above 0"):
        accuracy_efficiency_score(*values)
