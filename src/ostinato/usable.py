"""Which rollouts a trainer can use: one rule for each kind of data that a loss could not take.

    refused   nonfinite_score      reward, advantage or a group statistic is NaN or infinite
              nonfinite_logprobs   a trained token's behavior log-prob is missing (NaN) or infinite
              positive_logprobs    a trained token's behavior log-prob is above 0
              unpredicted_token    the first token of the sequence is trained on: nothing stands before it
              greedy_sampling      temperature 0: a choice without chance has no log-probs
              truncated_sampling   top_p < 1, top_k > 0 or min_p > 0 with raw log-probs
    idle      empty_completion     nothing was generated
              masked_completion    the loss mask leaves no token of what was generated

What is refused must not reach a loss. What is idle may: it contributes 0 to loss and gradient, and counts as a rollout
where a denominator counts rollouts. The rules about log-probs and sampling look at rollouts with a trained token only.

Two extra columns of shape (n,) are read where rollouts have them: `min_p`, the sampling parameter; and
`processed_logprobs` (bool), True where the engine returned log-probs of the distribution that it sampled from, after
truncation (vLLM: `logprobs_mode="processed_logprobs"`), so that truncated sampling is no reason to refuse. With raw
ones the stored number is not the probability of what happened, and no ratio to it means anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.ragged import Ragged, described, gather_positions, row_numbers
from ostinato.rollouts import Rollouts

LOGPROB_ROUNDING = 1e-4
"""A log-prob may end a hair above 0 in an engine that normalizes in float32."""

SCORES = ("reward", "group_reward_mean", "group_reward_std", "advantage")
REFUSED = (
    "nonfinite_score",
    "nonfinite_logprobs",
    "positive_logprobs",
    "unpredicted_token",
    "greedy_sampling",
    "truncated_sampling",
)
IDLE = ("empty_completion", "masked_completion")


def usable_rollouts(
    rollouts: Rollouts, rows: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which rollouts are not refused, bool (n,), and how many fall under each name of `REFUSED` and `IDLE`.

    `rows`: look at these alone; the mask is then in their order. A rollout counts once, for the first reason in the
    order of the names. Raises `DataError` when `rows` are no row numbers, or a column that is read has another shape.
    """
    rows = np.arange(len(rollouts)) if rows is None else row_numbers(rows, len(rollouts))
    open_n, counts = np.ones(len(rows), np.bool_), {}
    usable_n = open_n.copy()
    for reason, flagged_n in _reasons(rollouts, rows):
        counts[reason] = int(np.count_nonzero(open_n & flagged_n))
        open_n &= ~flagged_n
        if reason in REFUSED:
            usable_n &= ~flagged_n
    return usable_n, counts


def refuse_unusable(
    rollouts: Rollouts, *, rows: NDArray[np.int64] | None = None, rollout_ids: NDArray[np.int64] | None = None
) -> dict[str, int]:
    """Raise a `DataError` that names the first refused rollout and the reason; else count the idle ones, by name.

    `rows`: look at these alone. `rollout_ids` (n,): ids of all rollouts, to name the refused one by; any other number
    of ids is a `DataError` too.
    """
    if rollout_ids is not None and np.shape(rollout_ids) != (len(rollouts),):
        raise DataError(f"rollout_ids have shape {np.shape(rollout_ids)}, expected ({len(rollouts)},): one a rollout")
    usable_n, counts = usable_rollouts(rollouts, rows)
    refused = np.flatnonzero(~usable_n)
    if len(refused):
        row = int(refused[0] if rows is None else rows[refused[0]])
        identity = "" if rollout_ids is None else f"id {rollout_ids[row]}, "
        raise DataError(_fault(rollouts, row, f"rollout {row} ({identity}group {rollouts.group_id[row]})"))
    return {reason: counts[reason] for reason in IDLE}


def rows_holding(flagged_L: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each row of a packed column that holds a flagged position: bool (n,)."""
    filled_n = offsets[1:] > offsets[:-1]
    holding_n = np.zeros(len(offsets) - 1, np.bool_)
    if flagged_L.any():  # most often nothing is
        holding_n[filled_n] = np.logical_or.reduceat(flagged_L, offsets[:-1][filled_n])
    return holding_n


def _reasons(rollouts: Rollouts, rows: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Every reason of `REFUSED` and `IDLE`, in order, and which of the rows it flags."""
    positions, offsets = gather_positions(rollouts.offsets, rows)
    trained_L, behavior_L = rollouts.loss_mask[positions], rollouts.behavior_logprobs[positions]
    trained_n = rows_holding(trained_L, offsets)
    first_L = np.zeros(len(positions), np.bool_)
    first_L[offsets[:-1][offsets[1:] > offsets[:-1]]] = True
    yield "nonfinite_score", ~np.all([np.isfinite(getattr(rollouts, name)[rows]) for name in SCORES], axis=0)
    yield "nonfinite_logprobs", rows_holding(trained_L & ~np.isfinite(behavior_L), offsets)
    yield "positive_logprobs", rows_holding(trained_L & (behavior_L > LOGPROB_ROUNDING), offsets)
    yield "unpredicted_token", rows_holding(trained_L & first_L, offsets)
    yield "greedy_sampling", trained_n & ~(rollouts.temperature[rows] > 0)
    cut_n = ~(rollouts.top_p[rows] >= 1) | (rollouts.top_k[rows] > 0) | (_extra(rollouts, "min_p", rows) > 0)
    yield "truncated_sampling", trained_n & cut_n & ~_extra(rollouts, "processed_logprobs", rows).astype(np.bool_)
    yield "empty_completion", rollouts.completion_lengths[rows] == 0
    yield "masked_completion", ~trained_n


def _extra(rollouts: Rollouts, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    column = rollouts.extras.get(name)
    if column is None:
        return np.zeros(len(rows))
    if isinstance(column, Ragged) or column.shape != (len(rollouts),) or column.dtype.kind not in "biuf":
        shape = "a Ragged" if isinstance(column, Ragged) else described(column)
        raise DataError(f"extra column {name!r} is {shape}, expected one number a rollout ({len(rollouts)},)")
    return column[rows]


def _fault(rollouts: Rollouts, row: int, who: str) -> str:
    reason = next(reason for reason, flagged in _reasons(rollouts, np.array([row])) if flagged[0])
    if reason == "nonfinite_score":
        name = next(name for name in SCORES if not np.isfinite(getattr(rollouts, name)[row]))
        return f"{name} of {who} is {getattr(rollouts, name)[row]}, expected a finite number"
    if reason == "unpredicted_token":
        return f"token 0 of {who} is trained on, but nothing stands before it to predict it from"
    if reason == "greedy_sampling":
        temperature = f"temperature {rollouts.temperature[row]:g}"
        return f"{who} was sampled with {temperature}, expected one above 0: a greedy choice has no log-probs"
    if reason == "truncated_sampling":
        min_p = float(_extra(rollouts, "min_p", np.array([row]))[0])
        return (
            f"{who} was sampled with top_p {rollouts.top_p[row]:g}, top_k {rollouts.top_k[row]}, min_p {min_p:g}, whose"
            " truncated distribution raw log-probs do not belong to: sample with 1, 0 and 0, or store processed"
            " log-probs and say so in the extra column 'processed_logprobs'"
        )
    start, stop = rollouts.offsets[row : row + 2]
    behavior = rollouts.behavior_logprobs[start:stop]
    bad = rollouts.loss_mask[start:stop] & ~(np.isfinite(behavior) & (behavior <= LOGPROB_ROUNDING))
    token = int(bad.argmax())
    return f"behavior log-prob {behavior[token]} at token {token} of {who}: expected a finite number, at most 0"
