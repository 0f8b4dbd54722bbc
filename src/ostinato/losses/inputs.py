"""What a trainer knows about a batch or a micro-batch, from which every loss takes its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Tensors of B rollouts and, where they speak of tokens, L positions.

    (B, L): `logprobs`, `behavior_logprobs` and, where the objective needs a reference, `ref_logprobs`, natural logs;
    `mask` bool. (B,): `advantages`; `weights`, the importance weights of the draw; `group_id` int64, of rollouts that
    were generated together; `staleness` int64, train steps between the weights that generated and those that are
    trained; `replayed` bool, drawn before.
    """

    logprobs: Tensor
    behavior_logprobs: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor
    group_id: Tensor
    staleness: Tensor
    replayed: Tensor
    ref_logprobs: Tensor | None = None


def joined(parts: Sequence[LossInputs]) -> LossInputs:
    """The batch of its micro-batches, in their order; padded on the right, where the mask is False."""
    length = max(part.mask.shape[1] for part in parts)
    columns = {}
    for item in fields(LossInputs):
        values = [getattr(part, item.name) for part in parts]
        if values[0] is None:
            continue
        if values[0].ndim == 2:
            values = [torch.nn.functional.pad(value, (0, length - value.shape[1])) for value in values]
        columns[item.name] = torch.cat(values)
    return LossInputs(**columns)
