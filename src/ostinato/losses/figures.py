"""What each rollout of a batch tells about how far the policy has moved from the one that generated it."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.losses.checks import check_inputs
from ostinato.losses.ratios import LOG_RATIO_BOUND, masked


@torch.no_grad()
def rollout_figures(
    log_ratio_BL: Tensor, entropy_BL: Tensor, mask_BL: Tensor, clipped_B: Tensor | None = None
) -> dict[str, Tensor]:
    """Sums over the tokens of each rollout, as `ostinato.stats.off_policy.diagnose` wants them: float64 (B,) each.

    With x = log pi - log mu of a token, bounded to ±`LOG_RATIO_BOUND`, and r = exp(x):

        tokens                 count under the mask
        log_ratio_sum          sum of x              log_ratio_abs_sum      sum of |x|
        log_ratio_square_sum   sum of x^2            ratio_sum              sum of r
        ratio_square_sum       sum of r^2            ratio_max              the largest r, 0 without tokens
        kl_sum                 sum of r - 1 - x      entropy_sum            sum of the policy's entropy, nats
        clipped                `clipped_B`, from the metrics of the loss; 0 when None

    `log_ratio_BL` (as of `masked_log_ratio`), `entropy_BL` and the bool `mask_BL` have shape (B, L); what stands
    outside the mask is not looked at. Detached; sums are taken in float64. Raises `DataError` for any other shape.
    Source: estimators k1 (-x), k2 (x^2 / 2), k3 of KL(mu || pi) on tokens of mu, http://joschu.net/blog/kl-approx.html.
    """
    check_inputs(log_ratio_BL, mask_BL, entropy_BL=entropy_BL, clipped_B=clipped_B)
    x_BL = masked(log_ratio_BL, mask_BL).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio_BL = masked(x_BL.exp(), mask_BL)
    sums_BL = {
        "tokens": mask_BL,
        "log_ratio_sum": x_BL,
        "log_ratio_abs_sum": x_BL.abs(),
        "log_ratio_square_sum": x_BL.square(),
        "ratio_sum": ratio_BL,
        "ratio_square_sum": ratio_BL.square(),
        "kl_sum": torch.expm1(x_BL) - x_BL,
        "entropy_sum": masked(entropy_BL, mask_BL),
    }
    figures = {name: values_BL.sum(1, dtype=torch.float64) for name, values_BL in sums_BL.items()}
    padded_BL = torch.cat([ratio_BL, ratio_BL.new_zeros(len(ratio_BL), 1)], 1)
    figures["ratio_max"] = padded_BL.amax(1).double()
    figures["clipped"] = torch.zeros_like(figures["tokens"]) if clipped_B is None else clipped_B.double()
    return figures
