"""dL/dlogprobs of a toy batch under any loss of the catalog, by autograd on a leaf of log-probs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.config import LossConfig
from ostinato.losses.catalog import Objective
from ostinato.losses.inputs import LossInputs
from ostinato.protocols import Draw

Floats = NDArray[np.float64]


class AutogradSlope:
    """The loss's derivative with respect to each log-prob; every token trains. In float64.

    `length`: tokens of every completion.
    """

    def __init__(self, loss: LossConfig, length: int) -> None:
        self._objective, self._length = Objective.of(loss), length

    def __call__(self, draw: Draw, logprobs_BL: Floats, behavior_BL: Floats, ref_BL: Floats) -> tuple[Floats, Floats]:
        """dL/dlogprobs [B, L], and how many tokens of each rollout the loss's clip, cap or mask acts on [B]."""
        objective, rollouts = self._objective, draw.rollouts
        leaf = torch.from_numpy(logprobs_BL).requires_grad_()
        x = LossInputs(
            logprobs=leaf,
            behavior_logprobs=torch.from_numpy(behavior_BL),
            mask=torch.ones(leaf.shape, dtype=torch.bool),
            advantages=torch.from_numpy(objective.advantages(rollouts)),
            weights=torch.from_numpy(draw.importance_weights),
            group_id=torch.from_numpy(rollouts.group_id),
            staleness=torch.from_numpy(draw.staleness),
            replayed=torch.from_numpy(draw.uses > 0),
            ref_logprobs=torch.from_numpy(ref_BL),
        )
        loss, metrics = objective(x, objective.denominator(rollouts, max_new_tokens=self._length))
        (slope_BL,) = torch.autograd.grad(loss, leaf)
        return slope_BL.numpy(), metrics["clipped_B"].double().numpy()
