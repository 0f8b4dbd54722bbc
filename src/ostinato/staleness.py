"""The one definition of age, shared by the loop, the buffer and the statistics.

A policy version is the train step at which the weights were published, so staleness is counted in optimizer steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.protocols import Draw


def staleness(train_step: int, policy_version_min: NDArray[np.int64]) -> NDArray[np.int64]:
    """Optimizer steps between the weights that produced the oldest token and `train_step`: int64, same shape."""
    return train_step - policy_version_min


def residence(train_step: int, insert_step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Optimizer steps since the rollout entered the buffer: int64, same shape."""
    return train_step - insert_step


def admissible_rollouts(
    *, max_staleness: int, next_draw_step: int, version: int, batch_size: int, outstanding: int
) -> int:
    """How many more rollouts of weights `version` may be started so that none is drawn older than the bound.

    A consume-once queue hands out `batch_size` rollouts a step, so behind `outstanding` ones a new rollout is drawn at
    step next_draw_step + outstanding // batch_size at the latest. It is young enough while
    outstanding + n <= (max_staleness + 1 - (next_draw_step - version)) * batch_size  (after AReaL, arXiv 2505.24298).
    """
    return (max_staleness + 1 - (next_draw_step - version)) * batch_size - outstanding


def steps_since_last_use(batches: list[list[Any]]) -> list[list[int | None]]:
    """For every drawn sample, batch by batch: None when it is new, else train steps since its last appearance.

    Repeats inside one batch give 0 (arXiv 2604.08706, figure 2). The slow reference of `stats.replay`.
    """
    last: dict[Any, int] = {}
    result: list[list[int | None]] = []
    for step, batch in enumerate(batches):
        row: list[int | None] = []
        for item in batch:
            row.append(step - last[item] if item in last else None)
            last[item] = step
        result.append(row)
    return result


def aged(draw: Draw, epoch: int) -> Draw:
    """The same batch at its next consecutive train step: one step older, used once more."""
    if epoch == 0:
        return draw
    return replace(
        draw,
        staleness=draw.staleness + epoch,
        residence=draw.residence + epoch,
        uses=draw.uses + epoch,
        steps_since_last_use=np.ones_like(draw.steps_since_last_use),
    )
