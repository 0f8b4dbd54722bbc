"""What a draw says about its rows besides the rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.kernels import Drawn
from ostinato.buffer.sampling import Picked, PromptStrategy, Sampler
from ostinato.errors import DataError
from ostinato.protocols import Draw
from ostinato.ragged import described, row_numbers
from ostinato.rollouts import concatenate

Int = NDArray[np.int64]


def checked_pick(
    sampler: Sampler, columns: Columns, n: int | None, rng: np.random.Generator
) -> tuple[Int, NDArray[np.float64] | None]:
    """Rows a sampler chose, and their importance weights. Raises `DataError` unless they are n row numbers."""
    picked, name = sampler(columns, n, rng), type(sampler).__name__
    rows, weights = (picked.rows, picked.importance_weights) if isinstance(picked, Picked) else (picked, None)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.int64 or rows.ndim != 1:
        rows = row_numbers(rows, columns.span)
    if n is not None and len(rows) != n:
        raise DataError(f"{name} returned {len(rows)} rows, expected {n}")
    if weights is not None and (weights.dtype != np.float64 or weights.shape != rows.shape):
        raise DataError(f"{name} returned weights {described(weights)}, expected float64 {rows.shape}")
    return rows, weights


def rows_of_prompts(
    columns: Columns, prompt_ids: Int, per_prompt: int, strategy: PromptStrategy, rng: np.random.Generator
) -> Int:
    """Rows that `strategy` chooses, at most `per_prompt` of each prompt, prompts in the given order."""
    if per_prompt < 1:
        raise DataError(f"per_prompt must be at least 1, got {per_prompt}")
    live = columns.live()
    order = live[columns["prompt_id"][live].argsort(kind="stable")]
    held = columns["prompt_id"][order]
    first, last = np.searchsorted(held, prompt_ids), np.searchsorted(held, prompt_ids, "right")
    chosen = [np.empty(0, np.int64)]
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        if start < stop:
            chosen.append(strategy(columns, order[start:stop], per_prompt, rng))
    return np.concatenate(chosen)


def draw_columns(drawn: Drawn, weights: NDArray[np.float64] | None) -> dict[str, NDArray[Any]]:
    """The columns of `Draw`."""
    return {
        "rollout_ids": drawn.row["rollout_id"],
        "importance_weights": np.ones(len(drawn.uses)) if weights is None else weights,
        "staleness": drawn.staleness,
        "residence": drawn.residence,
        "uses": drawn.uses,
        "steps_since_last_use": drawn.since,
    }


def join_draws(draws: Sequence[Draw]) -> Draw:
    """One batch out of the draws of several shards, in order."""
    if len(draws) == 1:
        return draws[0]
    arrays = {
        name: np.concatenate([getattr(draw, name) for draw in draws])
        for name in ("rollout_ids", "importance_weights", "staleness", "residence", "uses", "steps_since_last_use")
    }
    return Draw(rollouts=concatenate([draw.rollouts for draw in draws]), **arrays)
