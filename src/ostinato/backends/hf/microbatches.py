"""How the rollouts of a step are put before the model: padded to the longest, or packed one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.backends.hf.policy import Passes, packed_logprobs, padded_logprobs
from ostinato.batching import Batch, microbatch_rows, padded_batch
from ostinato.errors import ConfigError
from ostinato.packing import PackedBatch, packed_batch, packed_rows, unpacked
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts

EXACT, ROUNDED = 1e-4, 3e-2
"""How far log-probs of a packed rollout may be from those of the rollout alone; rounded: under bf16."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Of a micro-batch: four tensors (B, L), float32 and nats but for the bool `mask`."""

    logprobs: Tensor
    entropy: Tensor
    behavior_logprobs: Tensor
    mask: Tensor


class Layout(Protocol):
    """One way to make micro-batches, and to read a model's log-probs from them."""

    def batches(self, draw: Draw, rows: NDArray[np.int64]) -> list[Any]:
        """Micro-batches of these rows of the draw, without those that have no trained token.

        Each has `rows`, of the draw. Raises `DataError` for rollouts that cannot be used (`ostinato.usable`).
        """

    def predict(self, model: Any, draw: Draw, batch: Any) -> Predicted:
        """What the model says of a micro-batch, with gradient."""


@dataclass(frozen=True, slots=True)
class Padded:
    """One row a rollout, neighbors in length together, at most `tokens_per_microbatch` with the padding."""

    tokens_per_microbatch: int
    pad_token_id: int
    passes: Passes

    def batches(self, draw: Draw, rows: NDArray[np.int64]) -> list[Batch]:
        """See `Layout`."""
        parts = microbatch_rows(draw.rollouts.lengths[rows], self.tokens_per_microbatch)
        batches = [
            padded_batch(draw.rollouts, rows[part], pad_token_id=self.pad_token_id, rollout_ids=draw.rollout_ids)
            for part in parts
        ]
        return [batch for batch in batches if batch.loss_mask.any()]

    def predict(self, model: Any, draw: Draw, batch: Batch) -> Predicted:
        """See `Layout`."""
        logprobs, entropy, first = padded_logprobs(model, batch, draw.rollouts.temperature[batch.rows], self.passes)
        device = logprobs.device
        behavior, mask = batch.behavior_logprobs[:, first:].to(device), batch.loss_mask[:, first:].to(device)
        return Predicted(logprobs, entropy, behavior, mask)


@dataclass(frozen=True, slots=True)
class Packed:
    """All rollouts of a micro-batch in one row, at most `tokens_per_microbatch` of them, without padding."""

    tokens_per_microbatch: int
    passes: Passes

    def batches(self, draw: Draw, rows: NDArray[np.int64]) -> list[PackedBatch]:
        """See `Layout`."""
        parts = packed_rows(draw.rollouts.lengths[rows], self.tokens_per_microbatch)
        batches = [packed_batch(draw.rollouts, rows[part], rollout_ids=draw.rollout_ids) for part in parts]
        return [batch for batch in batches if batch.loss_mask.any()]

    def predict(self, model: Any, draw: Draw, batch: PackedBatch) -> Predicted:
        """See `Layout`."""
        logprobs, entropy = packed_logprobs(model, batch, draw.rollouts.temperature[batch.rows], self.passes)
        device = logprobs.device
        behavior, mask = (unpacked(values.to(device), batch) for values in (batch.behavior_logprobs, batch.loss_mask))
        return Predicted(logprobs, entropy, behavior, mask)


@torch.no_grad()
def check_keeps_apart(model: Any, passes: Passes) -> None:
    """Raise `ConfigError` when a rollout of a packed row has other log-probs than alone: the model sees its neighbor.

    Tried on two rollouts of a few tokens.
    """
    tokens = np.arange(2, 14) % model.config.get_text_config().vocab_size
    rollouts = Rollouts.from_completions([tokens[:3], tokens[6:8]], [tokens[3:6], tokens[8:]], [[-1.0] * 3, [-1.0] * 4])
    temperature_B = rollouts.temperature
    together, _ = packed_logprobs(model, packed_batch(rollouts, np.arange(2)), temperature_B, passes)
    alone, _ = packed_logprobs(model, packed_batch(rollouts, np.array([1])), temperature_B[1:], passes)
    gap = float((together[1] - alone[0]).abs().max())
    if not gap <= (ROUNDED if passes.bf16 else EXACT):
        raise ConfigError(
            f"optimizer.packing: {type(model).__name__} lets a packed rollout see its neighbor (log-probs {gap:.2g} "
            "apart): set optimizer.packing = false"
        )
