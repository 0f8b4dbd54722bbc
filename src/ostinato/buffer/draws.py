"""What a draw says about its rows besides the rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.kernels import Drawn
from ostinato.buffer.sampling import STRATEGIES, Picked, PromptStrategy, Sampler
from ostinato.errors import ConfigError, DataError
from ostinato.protocols import Draw
from ostinato.ragged import described, row_numbers
from ostinato.rollouts import concatenate

Int = NDArray[np.int64]

ONE = np.ones(1)


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
    if weights is None:
        return rows, None
    if not isinstance(weights, np.ndarray) or weights.dtype != np.float64 or weights.shape != rows.shape:
        raise DataError(f"{name} returned weights {described(weights)}, expected float64 {rows.shape}")
    if not np.isfinite(weights).all():
        raise DataError(f"{name} returned an importance weight that is not finite")
    return rows, weights


def strategy_of(strategy: PromptStrategy | str) -> PromptStrategy:
    """The function of this name, or the function itself. Raises `ConfigError`."""
    if isinstance(strategy, str) and strategy in STRATEGIES:
        return STRATEGIES[strategy]
    if isinstance(strategy, str) or not callable(strategy):
        raise ConfigError(f"strategy must be a function or one of {sorted(STRATEGIES)}, got {strategy!r}")
    return strategy


def check_generator(rng: Any) -> None:
    """Raise `DataError` for anything but numpy's Generator."""
    if not isinstance(rng, np.random.Generator):
        raise DataError(f"rng is {type(rng).__name__}, expected numpy.random.default_rng(seed)")


def rows_of_prompts(
    columns: Columns, prompt_ids: Int, per_prompt: int, strategy: PromptStrategy, rng: np.random.Generator
) -> Int:
    """Rows that `strategy` chooses, at most `per_prompt` of each prompt, prompts in the given order."""
    live = columns.live()
    order = live[columns["prompt_id"][live].argsort(kind="stable")]
    held = columns["prompt_id"][order]
    first, last = np.searchsorted(held, prompt_ids), np.searchsorted(held, prompt_ids, "right")
    chosen = [np.empty(0, np.int64)]
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        if start < stop:
            chosen.append(row_numbers(strategy(columns, order[start:stop], per_prompt, rng), columns.span))
    return np.concatenate(chosen)


def draw_columns(drawn: Drawn, weights: NDArray[np.float64] | None) -> dict[str, NDArray[Any]]:
    """The columns of `Draw`."""
    return {
        "rollout_ids": drawn.row["rollout_id"],
        "importance_weights": ONE.repeat(len(drawn.uses)) if weights is None else weights,
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
