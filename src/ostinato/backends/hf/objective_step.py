"""The gradient of an objective over a drawn batch, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.backends.hf.gradient_halves import GradientHalves
from ostinato.backends.hf.policy import completion_logprobs
from ostinato.batching import Batch, microbatch_rows, padded_batch
from ostinato.losses import combined_metrics, masked_log_ratio, rollout_figures
from ostinato.losses.catalog import Objective
from ostinato.losses.inputs import LossInputs
from ostinato.protocols import Draw
from ostinato.stats import FIGURES


@dataclass(frozen=True, slots=True)
class Accumulated:
    """What the passes over a batch leave besides the gradient.

    `metrics`: of the loss, combined over micro-batches, with `loss`; empty without a trained token.
    `figures`: see `protocols.Trained`. `gradients`: see `GradientHalves.figures`; empty unless it was split.
    """

    metrics: Mapping[str, float]
    figures: Mapping[str, NDArray[np.float64]]
    gradients: Mapping[str, float]


class ObjectiveStep:
    """Adds the gradient of `objective` to the parameters of `model`.

    `reference`: the frozen model that the run started from; None where the objective needs none. `max_new_tokens`: the
    longest completion allowed, for a loss that divides by it. Raises `ConfigError` when such a loss has none.
    """

    def __init__(
        self,
        model: Any,
        reference: Any | None,
        objective: Objective,
        *,
        pad_token_id: int,
        tokens_per_microbatch: int,
        max_new_tokens: int | None,
        bf16: bool,
    ) -> None:
        self._model, self._reference, self._objective = model, reference, objective
        self._pad_token_id, self._bf16 = pad_token_id, bf16
        self._tokens_per_microbatch, self._max_new_tokens = tokens_per_microbatch, max_new_tokens
        objective.check_constant(max_new_tokens)

    def backward(self, draw: Draw, *, split: bool = False) -> Accumulated:
        """Forward and backward over the batch; a loss that looks at all of it first costs one more forward pass.

        `split`: rollouts drawn for the first time go first, the others after them, and `gradients` tells the two
        gradients apart, for the memory of a second one. The sum is the same but for the order in which it is rounded.
        Raises `DataError`, before anything is computed, for rollouts that cannot be used (`ostinato.usable`).
        """
        denominator = self._objective.denominator(draw.rollouts, max_new_tokens=self._max_new_tokens)
        advantages_n = self._objective.advantages(draw.rollouts)
        fresh_n = draw.uses == 0
        parts = [np.flatnonzero(fresh_n), np.flatnonzero(~fresh_n)] if split else [np.arange(len(draw))]
        batches = [self._batches(draw, rows) for rows in parts]
        statistics = iter(self._statistics(draw, [batch for part in batches for batch in part], advantages_n))
        metrics: list[Mapping[str, Tensor]] = []
        figures: list[Mapping[str, Tensor]] = []
        halves = GradientHalves(self._model) if split else None
        for part in batches:
            for batch in part:
                x, entropy_BL = self._inputs(draw, batch, advantages_n)
                loss, told = self._objective(x, denominator, next(statistics))
                loss.backward()
                metrics.append(told | {"loss": loss.detach()})
                log_ratio_BL = masked_log_ratio(x.logprobs.detach(), x.behavior_logprobs, x.mask)
                figures.append(rollout_figures(log_ratio_BL, entropy_BL, x.mask, told["clipped_B"]))
            if halves:
                halves.end_part()
        sums = combined_metrics(metrics)
        return Accumulated(
            {name: float(value) for name, value in sums.items() if value.ndim == 0},
            in_draw_order(figures, [batch.rows for part in batches for batch in part], len(draw)),
            halves.figures() if halves else {},
        )

    def _batches(self, draw: Draw, rows: NDArray[np.int64]) -> list[Batch]:
        parts = microbatch_rows(draw.rollouts.lengths[rows], self._tokens_per_microbatch)
        batches = [
            padded_batch(draw.rollouts, rows[part], pad_token_id=self._pad_token_id, rollout_ids=draw.rollout_ids)
            for part in parts
        ]
        return [batch for batch in batches if batch.loss_mask.any()]

    @torch.no_grad()
    def _statistics(
        self, draw: Draw, batches: Sequence[Batch], advantages_n: NDArray[np.float64]
    ) -> Sequence[Tensor | None]:
        if not self._objective.needs_statistics:
            return [None] * len(batches)
        return self._objective.statistics([self._inputs(draw, batch, advantages_n)[0] for batch in batches])

    def _inputs(self, draw: Draw, batch: Batch, advantages_n: NDArray[np.float64]) -> tuple[LossInputs, Tensor]:
        """What the loss sees of a micro-batch, and the entropies (B, L)."""
        rollouts, rows, device = draw.rollouts, batch.rows, self._model.device
        logprobs_BL, entropy_BL, first = self._logprobs(self._model, draw, batch)
        ref_BL = None
        if self._reference is not None:
            with torch.no_grad():
                ref_BL, _, _ = self._logprobs(self._reference, draw, batch)

        def on_device(values_n: NDArray[Any]) -> Tensor:
            values_B = torch.from_numpy(values_n[rows])
            return (values_B.float() if values_B.is_floating_point() else values_B).to(device)

        x = LossInputs(
            logprobs=logprobs_BL,
            behavior_logprobs=batch.behavior_logprobs[:, first:].to(device),
            mask=batch.loss_mask[:, first:].to(device),
            advantages=on_device(advantages_n),
            weights=on_device(draw.importance_weights),
            group_id=on_device(rollouts.group_id),
            staleness=on_device(draw.staleness),
            replayed=on_device(draw.uses > 0),
            ref_logprobs=ref_BL,
        )
        return x, entropy_BL

    def _logprobs(self, model: Any, draw: Draw, batch: Batch) -> tuple[Tensor, Tensor, int]:
        return completion_logprobs(model, batch, draw.rollouts.temperature[batch.rows], bf16=self._bf16)


def in_draw_order(
    figures: Sequence[Mapping[str, Tensor]], rows: Sequence[NDArray[np.int64]], n: int
) -> dict[str, NDArray[np.float64]]:
    """The figures of micro-batches as columns of the whole draw; 0 for rollouts that were in none: float64 (n,)."""
    columns_kn = np.zeros((len(FIGURES), n))
    if figures:
        # One copy from the device for all of them.
        found = torch.cat([torch.stack([part[name] for name in FIGURES]) for part in figures], dim=1)
        columns_kn[:, np.concatenate(rows)] = found.cpu().numpy()
    return dict(zip(FIGURES, columns_kn, strict=True))
