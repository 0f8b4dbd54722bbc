"""What every loss returns, the ratio metrics they share, and how metrics of parts combine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LossOutput(NamedTuple):
    """`loss`: scalar, to be minimized. `metrics`: detached, combined over micro-batches by `combined_metrics`.

    `tokens` is the count under the mask. Names that end in `_sum` and `clipped` (a count) add up over micro-batches and
    are divided by the added `tokens` for a mean; `ratio_max` combines by maximum. These are scalars. Names that end in
    `_B` have one value a rollout, shape (B,), and are concatenated.
    """

    loss: Tensor
    metrics: dict[str, Tensor]


@torch.no_grad()
def ratio_metrics(log_ratio_BL: Tensor, clipped_BL: Tensor, mask_BL: Tensor) -> dict[str, Tensor]:
    """How far the policy has moved from the one that generated, over the tokens under the mask.

    With r = exp(log_ratio) = pi / mu of each token, at whatever level the loss takes its own ratio: `ratio_sum`,
    `ratio_max` (0 without tokens), `log_ratio_abs_sum`, `clipped` (tokens that a clip, a cap or a mask of the loss acts
    on; `clipped_B`: those of each rollout) and `kl_sum`, the sum of r - 1 - log r >= 0, which estimates KL(mu || pi)
    without bias. `log_ratio_BL` must be 0 where the mask is False.
    Source: estimator k3, http://joschu.net/blog/kl-approx.html.
    """
    ratio_BL = torch.where(mask_BL, log_ratio_BL.exp(), 0.0)
    clipped_B = (clipped_BL & mask_BL).sum(1)
    return {
        "tokens": mask_BL.sum(),
        "ratio_sum": ratio_BL.sum(),
        "ratio_max": torch.cat([ratio_BL.flatten(), ratio_BL.new_zeros(1)]).max(),
        "log_ratio_abs_sum": log_ratio_BL.abs().sum(),
        "kl_sum": (torch.expm1(log_ratio_BL) - log_ratio_BL).sum(),
        "clipped": clipped_B.sum(),
        "clipped_B": clipped_B,
    }


def combined_metrics(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Metrics of a batch from those of its parts, in their order: the names that all parts have.

    Names that end in `ratio_max` take the largest, in `_B` are concatenated; all others add up. Without parts: none.
    """
    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    combined = {}
    for name in names:
        values = [part[name] for part in parts]
        if name.endswith("_B"):
            combined[name] = torch.cat(values)
        else:
            stacked = torch.stack(values)
            combined[name] = stacked.max() if name.endswith("ratio_max") else stacked.sum()
    return combined
