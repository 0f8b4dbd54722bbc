"""A draw as the micro-batches that TRL's loss takes, and as what a loss of ours knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.integrations.trl.fields import unpacked_fields
from ostinato.losses.inputs import LossInputs
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts


@dataclass(slots=True)
class Window:
    """The batch of one optimizer step on one process: a draw in micro-batches of `rows` rollouts.

    `tokens`: trained on in this step by all processes. `borrowed`: not drawn from the buffer, which could not give a
    batch. Of the micro-batches so far: `figures`, see `protocols.Trained`, and `metrics` of a loss of ours.
    `statistics`: what such a loss takes from the whole batch, a share for each micro-batch.
    """

    draw: Draw
    parts: list[dict[str, Any]]
    rows: int
    tokens: Tensor
    borrowed: bool
    figures: list[Mapping[str, Tensor]] = field(default_factory=list)
    metrics: list[Mapping[str, Tensor]] = field(default_factory=list)
    statistics: list[Tensor | None] = field(default_factory=list)

    def of_part(self, index: int, values_n: NDArray[Any], device: torch.device) -> Tensor:
        """The rows of a column that micro-batch `index` holds."""
        values = torch.from_numpy(np.ascontiguousarray(values_n[index * self.rows : (index + 1) * self.rows]))
        return (values.float() if values.is_floating_point() else values).to(device)

    def loss_inputs(self, index: int, logprobs_BL: Tensor, advantages_n: NDArray[np.float64]) -> LossInputs:
        """What a loss sees of micro-batch `index`, given the policy's log-probs of its completions."""
        draw, part, device = self.draw, self.parts[index], logprobs_BL.device
        return LossInputs(
            logprobs=logprobs_BL,
            behavior_logprobs=part["behavior_logprobs"],
            mask=trained(part),
            advantages=self.of_part(index, advantages_n, device),
            weights=self.of_part(index, draw.importance_weights, device),
            group_id=self.of_part(index, draw.rollouts.group_id, device),
            staleness=self.of_part(index, draw.staleness, device),
            replayed=self.of_part(index, draw.uses > 0, device),
            ref_logprobs=part.get("ref_per_token_logps"),
        )


def trained(batch: Mapping[str, Any]) -> Tensor:
    """Completion tokens that the policy produced and is trained on: bool (B, L)."""
    mask: Tensor = batch["completion_mask"].bool()
    return mask & batch["tool_mask"].bool() if "tool_mask" in batch else mask


def micro_batches(
    draw: Draw, rows: int, *, pad_token_id: int, multiple_of: int, device: torch.device
) -> list[dict[str, Any]]:
    """The draw in its order, `rows` rollouts at a time, each as wide as its own longest prompt and completion."""
    starts = range(0, len(draw), rows)
    chosen = [np.arange(start, min(start + rows, len(draw))) for start in starts]
    parts = [_padded(draw.rollouts.select(part), pad_token_id, multiple_of) for part in chosen]
    return [{name: _moved(value, device) for name, value in part.items()} for part in parts]


def weigh(window: Window) -> None:
    """Multiply each rollout's advantages by its importance weight.

    Every policy loss of TRL is homogeneous in the advantage (a positive factor goes through each minimum and clip), so
    this weighs the rollout's loss; the KL to the reference stays as it is.
    """
    if (window.draw.importance_weights == 1).all():
        return
    for index, part in enumerate(window.parts):
        advantages = part["advantages"]
        weights = window.of_part(index, window.draw.importance_weights, advantages.device)
        part["advantages"] = advantages * (weights if advantages.ndim == 1 else weights[:, None])


def _padded(rollouts: Rollouts, pad_token_id: int, multiple_of: int) -> dict[str, Any]:
    """TRL's dict of some rollouts: prompts padded on the left, completions on the right."""
    prompts, completions = rollouts.prompt_length, rollouts.completion_lengths
    # A batch of empty completions keeps one column: a model gives no log-probs of none.
    left, right = (-(-max(int(lengths.max()), 1) // multiple_of) * multiple_of for lengths in (prompts, completions))
    n = len(rollouts)
    tokens, inside = np.full((n, left + right), pad_token_id, np.int64), np.zeros((n, left + right), np.int64)
    behavior = np.zeros((n, left + right), np.float32)
    for i, (start, stop) in enumerate(zip(rollouts.offsets[:-1], rollouts.offsets[1:], strict=True)):
        place = slice(left - int(prompts[i]), left + int(completions[i]))
        tokens[i, place], inside[i, place] = rollouts.tokens[start:stop], 1
        behavior[i, place] = rollouts.behavior_logprobs[start:stop]
    return {
        "prompt_ids": torch.from_numpy(tokens[:, :left]),
        "prompt_mask": torch.from_numpy(inside[:, :left]),
        "completion_ids": torch.from_numpy(tokens[:, left:]),
        "completion_mask": torch.from_numpy(inside[:, left:]),
        "behavior_logprobs": torch.from_numpy(behavior[:, left:]),
        "advantages": torch.from_numpy(rollouts.advantage).float(),
        **unpacked_fields(rollouts, (left, right)),
    }


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value
