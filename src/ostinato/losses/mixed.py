"""One loss of two: for the fresh and for the replayed part of a batch."""

from __future__ import annotations

from ostinato.losses.checks import check_above, check_finite
from ostinato.losses.output import LossOutput, combined_metrics


def mixed(
    fresh: LossOutput, replayed: LossOutput, *, replayed_coefficient: float = 1.0, mean: bool = False
) -> LossOutput:
    """Add two losses that were reduced apart, so that neither part's size dilutes the other.

        loss = L_fresh + lambda L_replayed,       divided by 1 + lambda under `mean`

    lambda: `replayed_coefficient`. Each part may be a different loss: `grpo` and `shaped_importance` give ExGRPO;
    `grpo` twice, with advantages normalized within each part, RePO. Micro-batches add up when each part has its own
    denominator. Raises `ConfigError` unless lambda > 0.

    Metrics: those of both under `fresh_` and `replayed_`, and combined by `combined_metrics`, fresh rollouts first.
    Source: RePO, arXiv 2506.09340 (split, lambda 1); ExGRPO, arXiv 2510.02245.
    """
    check_above("replayed_coefficient", replayed_coefficient, 0)
    check_finite("replayed_coefficient", replayed_coefficient)
    loss = fresh.loss + replayed_coefficient * replayed.loss
    metrics = {f"fresh_{name}": value for name, value in fresh.metrics.items()}
    metrics |= {f"replayed_{name}": value for name, value in replayed.metrics.items()}
    metrics |= combined_metrics([fresh.metrics, replayed.metrics])
    return LossOutput(loss / (1 + replayed_coefficient) if mean else loss, metrics)
