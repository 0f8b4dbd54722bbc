from collections.abc import Callable

import pytest
import torch
from torch import Tensor

RandomBatch = Callable[[float], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]


@pytest.fixture
def random_batch() -> RandomBatch:
    """(logprobs, behavior_logprobs, advantages, mask, weights) in float64; the log-ratio has the given spread.

    8 rollouts, 7 positions; rollout 0 has no token under the mask.
    """

    def build(spread: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rng = torch.Generator().manual_seed(3)
        behavior = -3.0 * torch.rand(8, 7, generator=rng, dtype=torch.float64) - 2.0
        moved = (2 * torch.rand(8, 7, generator=rng, dtype=torch.float64) - 1) * spread
        advantages = torch.randn(8, generator=rng, dtype=torch.float64)
        mask = torch.rand(8, 7, generator=rng) < 0.7
        mask[0] = False
        weights = torch.rand(8, generator=rng, dtype=torch.float64) + 0.5
        return (behavior + moved).requires_grad_(), behavior, advantages, mask, weights

    return build
