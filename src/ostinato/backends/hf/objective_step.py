"""The gradient of an objective over a drawn batch, micro-batch by micro-batch, by one trainer or by several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.backends.hf.gradient_halves import GradientHalves
from ostinato.backends.hf.gradients import Gradients
from ostinato.backends.hf.microbatches import Layout
from ostinato.backends.hf.replicas import Replicas
from ostinato.losses import combined_metrics, masked_log_ratio, rollout_figures
from ostinato.losses.catalog import Objective
from ostinato.losses.inputs import LossInputs
from ostinato.protocols import Draw
from ostinato.stats import FIGURES

Batches = list[list[Any]]
"""Micro-batches of each part of a step; None: another trainer still has one, and all must pass through the model."""


@dataclass(frozen=True, slots=True)
class Accumulated:
    """What the passes over a batch leave besides the gradient.

    `metrics`: of the loss, combined over micro-batches, with `loss`; empty without a trained token.
    `figures`: see `protocols.Trained`. `gradients`: see `GradientHalves.figures`; empty unless it was split.
    `uses`: of the rollouts, as in the draw. All are of the whole batch, however many trainers share it.
    """

    metrics: Mapping[str, float]
    figures: Mapping[str, NDArray[np.float64]]
    gradients: Mapping[str, float]
    uses: NDArray[np.int64]


class ObjectiveStep:
    """Adds the gradient of `objective` to the parameters of `model`.

    `reference`: the frozen model that the run started from; None where the objective needs none. `max_new_tokens`: the
    longest completion allowed, for a loss that divides by it. `in_step`: all trainers must pass through the model
    equally often, since each holds a part of it. Raises `ConfigError` when a loss that needs `max_new_tokens` has none.
    """

    def __init__(
        self,
        model: Any,
        reference: Any | None,
        objective: Objective,
        layout: Layout,
        *,
        max_new_tokens: int | None,
        replicas: Replicas,
        in_step: bool,
    ) -> None:
        self._model, self._reference, self._objective = model, reference, objective
        self._layout, self._max_new_tokens = layout, max_new_tokens
        self._replicas, self._in_step = replicas, in_step
        objective.check_constant(max_new_tokens)

    def backward(self, draw: Draw, gradients: Gradients, *, split: bool = False) -> Accumulated:
        """Forward and backward over this trainer's share; a loss that looks at the batch first costs one more forward.

        Afterwards `gradients` are those of the whole batch: normalized by its counts, summed over trainers. `split`:
        rollouts drawn for the first time go first, the others after them, and the figure `gradients` tells the two
        apart, for the memory of a second one. The sum is the same but for the order in which it is rounded.
        Raises `DataError`, before anything is computed, for rollouts that cannot be used (`ostinato.usable`).
        """
        fresh_n = draw.uses == 0
        parts = [np.flatnonzero(fresh_n), np.flatnonzero(~fresh_n)] if split else [np.arange(len(draw))]
        batches = self._replicas.agree(lambda: [self._layout.batches(draw, rows) for rows in parts])
        batches, denominator = self._common(batches, draw)
        advantages_n = self._objective.advantages(draw.rollouts)
        statistics = iter(self._statistics(draw, [batch for part in batches for batch in part], advantages_n))
        metrics: list[Mapping[str, Tensor]] = []
        figures: list[Mapping[str, Tensor]] = []
        halves = GradientHalves(gradients) if split else None
        for part in batches:
            for batch in part:
                statistic = next(statistics)
                if batch is None:
                    self._idle().backward()
                    continue
                x, entropy_BL = self._inputs(draw, batch, advantages_n)
                loss, told = self._objective(x, denominator, statistic)
                loss.backward()
                metrics.append(told | {"loss": loss.detach()})
                log_ratio_BL = masked_log_ratio(x.logprobs.detach(), x.behavior_logprobs, x.mask)
                figures.append(rollout_figures(log_ratio_BL, entropy_BL, x.mask, told["clipped_B"]))
            gradients.complete()
            if halves:
                halves.end_part()
        rows = [batch.rows for part in batches for batch in part if batch is not None]
        return self._whole(
            {name: float(value) for name, value in combined_metrics(metrics).items() if value.ndim == 0},
            in_draw_order(figures, rows, len(draw)),
            draw.uses,
            halves.figures() if halves else {},
        )

    @torch.no_grad()
    def logprobs(self, draw: Draw) -> NDArray[np.float32]:
        """See `protocols.Recomputer`; of this trainer's share."""
        by_row = [np.zeros(0, np.float32)] * len(draw)
        for batch in self._layout.batches(draw, np.arange(len(draw))):
            predicted = self._layout.predict(self._model, draw, batch)
            for row, values_L, mask_L in zip(batch.rows, predicted.logprobs, predicted.mask, strict=True):
                by_row[row] = values_L[mask_L].float().cpu().numpy()
        return np.concatenate(by_row)

    def _common(self, batches: Batches, draw: Draw) -> tuple[Batches, float]:
        """The micro-batches, as many as of any trainer where they go in step, and the denominator of the batch."""
        denominator = self._objective.denominator(draw.rollouts, max_new_tokens=self._max_new_tokens)
        counts, denominators = zip(*self._replicas.gather(([len(part) for part in batches], denominator)), strict=True)
        if self._in_step:
            batches = [part + [None] * (max(most) - len(part)) for part, *most in zip(batches, *counts, strict=True)]
        return batches, sum(denominators)

    def _whole(
        self,
        metrics: dict[str, float],
        figures: Mapping[str, NDArray[np.float64]],
        uses: NDArray[np.int64],
        gradients: Mapping[str, float],
    ) -> Accumulated:
        """What all trainers together say: counts and losses added, one figure a rollout in the order of trainers."""
        said = self._replicas.gather((metrics, figures, uses))
        parts = [
            {name: torch.tensor(value, dtype=torch.float64) for name, value in one.items()} for one, _, _ in said if one
        ]
        if len(said) > 1:
            metrics = {name: float(value) for name, value in combined_metrics(parts).items()}
            figures = {name: np.concatenate([one[name] for _, one, _ in said]) for name in FIGURES}
            uses = np.concatenate([one for _, _, one in said])
        return Accumulated(metrics, figures, gradients, uses)

    @torch.no_grad()
    def _statistics(
        self, draw: Draw, batches: Sequence[Any], advantages_n: NDArray[np.float64]
    ) -> Sequence[Tensor | None]:
        """What the loss takes from the whole batch, for each micro-batch of this trainer."""
        if not self._objective.needs_statistics:
            return [None] * len(batches)
        parts: list[LossInputs] = []
        for batch in batches:
            if batch is None:
                self._idle()
            else:
                parts.append(self._inputs(draw, batch, advantages_n)[0])
        if self._replicas.alone:
            return self._objective.statistics(parts)
        said = self._replicas.gather([_moved(part, "cpu") for part in parts])
        found = self._objective.statistics([_moved(part, self._model.device) for one in said for part in one])
        before = sum(len(one) for one in said[: self._replicas.rank])
        return [*found[before : before + len(parts)], *[None] * (len(batches) - len(parts))]

    def _idle(self) -> Tensor:
        """A pass through the model that adds nothing to its gradient, while another trainer still has a micro-batch."""
        tokens = torch.zeros((1, 2), dtype=torch.int64, device=self._model.device)
        if self._reference is not None:
            with torch.no_grad():
                self._reference(input_ids=tokens, use_cache=False)
        return 0 * self._model(input_ids=tokens, use_cache=False).logits.float().sum()

    def _inputs(self, draw: Draw, batch: Any, advantages_n: NDArray[np.float64]) -> tuple[LossInputs, Tensor]:
        """What the loss sees of a micro-batch, and the entropies (B, L)."""
        rollouts, rows, device = draw.rollouts, batch.rows, self._model.device
        ref_BL = None
        if self._reference is not None:
            with torch.no_grad():
                ref_BL = self._layout.predict(self._reference, draw, batch).logprobs
        predicted = self._layout.predict(self._model, draw, batch)

        def on_device(values_n: NDArray[Any]) -> Tensor:
            values_B = torch.from_numpy(values_n[rows])
            return (values_B.float() if values_B.is_floating_point() else values_B).to(device)

        x = LossInputs(
            logprobs=predicted.logprobs,
            behavior_logprobs=predicted.behavior_logprobs,
            mask=predicted.mask,
            advantages=on_device(advantages_n),
            weights=on_device(draw.importance_weights),
            group_id=on_device(rollouts.group_id),
            staleness=on_device(draw.staleness),
            replayed=on_device(draw.uses > 0),
            ref_logprobs=ref_BL,
        )
        return x, predicted.entropy


def _moved(x: LossInputs, device: Any) -> LossInputs:
    columns = {item.name: getattr(x, item.name) for item in fields(LossInputs)}
    return replace(x, **{name: value.to(device) for name, value in columns.items() if value is not None})


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
