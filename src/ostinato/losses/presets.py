"""Published losses as argument lists: read one, copy its arguments, change one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ostinato.losses.clipped import clipped_surrogate
from ostinato.losses.output import LossOutput
from ostinato.losses.weighted import cispo

PRESETS: Mapping[str, partial[LossOutput]] = {
    # arXiv 2402.03300, equation 3; its KL term needs ref_logprobs_BL and kl_coefficient=0.04, kl_ratio=False.
    "grpo": partial(clipped_surrogate, aggregation="sequence_mean", clip_low=0.8, clip_high=1.2),
    # arXiv 2503.14476, section 3.
    "dapo": partial(clipped_surrogate, aggregation="token_mean", clip_low=0.8, clip_high=1.28),
    # arXiv 2503.20783; the denominator is rollouts times the longest completion allowed, advantages are r - mean.
    "dr_grpo": partial(clipped_surrogate, aggregation="constant", clip_low=0.8, clip_high=1.2),
    # arXiv 2507.18071, equation 5.
    "gspo": partial(
        clipped_surrogate, level="geometric", aggregation="sequence_mean", clip_low=1 - 3e-4, clip_high=1 + 4e-4
    ),
    # arXiv 2512.02556, equation 9; the delta is the example of TRL, the paper has none.
    "deepseek_v32": partial(
        clipped_surrogate, aggregation="sequence_mean", clip_low=0.8, clip_high=1.2, sequence_mask_delta=0.5
    ),
    # arXiv 2606.04560.
    "advantage_prioritized": partial(
        clipped_surrogate, aggregation="token_mean", clip_low=0.8, clip_high=1.28, dual_clip=10.0
    ),
    # arXiv 2506.13585: 1 + eps_high, no lower bound; eps_high is that of verl's example, the paper has none.
    "cispo_minimax": partial(cispo, aggregation="token_mean", clip_low=0.0, clip_high=1 + 0.2),
    # arXiv 2510.13786 (ScaleRL) and TRL: the cap itself, not its distance from 1.
    "cispo_scalerl": partial(cispo, aggregation="token_mean", clip_low=0.0, clip_high=5.0),
}
"""Name -> a loss of (logprobs_BL, behavior_logprobs_BL, advantages_B, mask_BL) with every option of its function."""
