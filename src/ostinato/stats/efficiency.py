"""One number for accuracy and cost."""

from __future__ import annotations

import math

from ostinato.errors import DataError


def accuracy_efficiency_score(
    accuracy: float,
    cost: float,
    baseline_accuracy: float,
    baseline_cost: float,
    *,
    cost_weight: float = 1.0,
    gain_weight: float = 3.0,
    loss_weight: float = 5.0,
) -> float:
    """AES: relative saving plus weighted relative gain of accuracy; losing accuracy weighs more than gaining it.

        w dL + b dA  where dA >= 0,  w dL + g dA  where dA < 0
        dL = (L_base - L) / L_base        dA = (A - A_base) / A_base

    L is any cost (tokens of an answer, rollouts, compute), w, b, g the three weights. The defaults are those of
    O1-Pruner; other papers take 1, 5, 10 or leave them open, so say which you took.
    Raises `DataError` unless accuracies and costs are finite and at least 0 and the baseline's are above 0.
    Source: O1-Pruner, arXiv 2501.12570.
    """
    values = (accuracy, cost, baseline_accuracy, baseline_cost)
    if not all(math.isfinite(v) and v >= 0 for v in values) or not (baseline_accuracy > 0 and baseline_cost > 0):
        raise DataError(f"expected accuracies and costs of at least 0, the baseline's above 0, got {values}")
    saved = (baseline_cost - cost) / baseline_cost
    gained = (accuracy - baseline_accuracy) / baseline_accuracy
    return cost_weight * saved + (gain_weight if gained >= 0 else loss_weight) * gained
