"""The importance ratio between the current policy pi and the behavior policy mu that generated the tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_log_ratio(logprobs_BL: Tensor, behavior_logprobs_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """log pi(token) - log mu(token), and 0 where the bool mask is False: (B, L).

    The mask selects the inputs, not the difference: -inf or NaN outside the mask reaches neither value nor gradient.
    """
    current_BL = torch.where(mask_BL, logprobs_BL, 0.0)
    behavior_BL = torch.where(mask_BL, behavior_logprobs_BL.detach(), 0.0)
    return current_BL - behavior_BL
