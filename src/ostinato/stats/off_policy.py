"""How far training has moved from the policies that generated its batch: of the whole batch and by age.

Every number is made of the figures of single rollouts, sums over their tokens that a trainer hands in
(`ostinato.losses.figures.rollout_figures`, or `rollout_figures` here). x = log pi - log mu of a token, r = exp(x), and
X the sum of x over a rollout, so that exp(X) is the ratio of the completion. A rollout without tokens counts in
`rollouts`, `empty` and `correct_fraction` only.

    rollouts, tokens, empty      counts; `empty`: rollouts without a token under the mask
    correct_fraction             share of rollouts that are correct
    ess_fraction                 effective sample size of the exp(X) over their number
    ess_token_fraction           the same of the r of all tokens
    kl_k1, kl_k2, kl_k3          mean over tokens of -x, x^2 / 2, r - 1 - x: estimates of KL(mu || pi), nats a token
    kl_sequence_k1, _k2, _k3     the same of X: nats a rollout
    chi2, chi2_token             mean of exp(X)^2 - 1, of r^2 - 1: Pearson's divergence of pi from mu (an
                                 estimate may be negative)
    log_ratio_abs                mean of |x|
    log_ratio_square             mean of x^2 over all tokens: the second moment that M2PO bounds (there: of some tokens)
    ratio_mean, ratio_max        of r; the mean tends to 1
    geometric_ratio              mean over rollouts of exp(X / tokens)
    clip_fraction                share of tokens that the loss's clip, cap or mask acts on
    entropy                      of pi, nats a token

Sources: Kish and VCPO, arXiv 2602.17616 (ESS); http://joschu.net/blog/kl-approx.html (k1, k2, k3); M2PO, arXiv
2510.01161; GSPO, arXiv 2507.18071 (geometric ratio).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.stats.ages import AGE_EDGES, age_buckets
from ostinato.stats.effective_size import effective_sample_fraction

Floats = NDArray[np.float64]

LOG_RATIO_BOUND = 40.0
"""Log-ratios are bounded to ± this before their exponential is taken, as in `ostinato.losses`; `ess_fraction` needs no
bound on X."""

FIGURES = (
    "tokens",
    "log_ratio_sum",
    "log_ratio_abs_sum",
    "log_ratio_square_sum",
    "ratio_sum",
    "ratio_square_sum",
    "ratio_max",
    "kl_sum",
    "entropy_sum",
    "clipped",
)
"""What a trainer tells about each rollout, float64 (n,) each; see `rollout_figures`."""

NOT_NEGATIVE = ("tokens", "log_ratio_abs_sum", "log_ratio_square_sum", "ratio_sum", "ratio_square_sum", "clipped")
LARGEST_FIGURE = 1e100
"""Squares of figures, and sums of these, stay finite."""


def rollout_figures(
    log_ratio_BL: Floats, entropy_BL: Floats, mask_BL: NDArray[np.bool_], clipped_BL: NDArray[np.bool_]
) -> dict[str, Floats]:
    """The figures of each rollout without torch: `FIGURES`, float64 (B,) each; all arguments have shape (B, L).

    Names and formulas are those of `ostinato.losses.figures.rollout_figures`. What stands outside the mask is not
    looked at. Raises `DataError` for another shape or a mask that is not bool.
    """
    arrays = {"log_ratio_BL": log_ratio_BL, "entropy_BL": entropy_BL, "mask_BL": mask_BL, "clipped_BL": clipped_BL}
    for name, array in arrays.items():
        if array.ndim != 2 or array.shape != mask_BL.shape:
            raise DataError(f"{name} has shape {array.shape}, expected (B, L), {mask_BL.shape} of mask_BL")
    for name in ("mask_BL", "clipped_BL"):
        if arrays[name].dtype != np.bool_:
            raise DataError(f"{name} is {arrays[name].dtype}, expected bool")
    x_BL = np.where(mask_BL, log_ratio_BL.astype(np.float64), 0.0).clip(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio_BL = np.where(mask_BL, np.exp(x_BL), 0.0)
    return {
        "tokens": mask_BL.sum(1, dtype=np.float64),
        "log_ratio_sum": x_BL.sum(1),
        "log_ratio_abs_sum": np.abs(x_BL).sum(1),
        "log_ratio_square_sum": np.square(x_BL).sum(1),
        "ratio_sum": ratio_BL.sum(1),
        "ratio_square_sum": np.square(ratio_BL).sum(1),
        "ratio_max": ratio_BL.max(1, initial=0.0),
        "kl_sum": (np.expm1(x_BL) - x_BL).sum(1),
        "entropy_sum": np.where(mask_BL, entropy_BL, 0.0).sum(1),
        "clipped": (clipped_BL & mask_BL).sum(1, dtype=np.float64),
    }


def diagnose(
    figures: Mapping[str, Floats],
    *,
    staleness: NDArray[np.int64],
    fresh: NDArray[np.bool_],
    correct: NDArray[np.bool_],
    edges: Sequence[int] = AGE_EDGES,
) -> dict[str, float]:
    """Every number of this module for the batch, and under `age_4_15.` and the like for each age that occurs in it.

    `figures`: at least `FIGURES`; `staleness` in train steps; `fresh`: drawn for the first time; `correct`: solved.
    Every array has shape (n,). `edges`: lower ends of the age buckets (`ages.age_buckets`). For the batch also
    `fresh_fraction`, `entropy_fresh`, `entropy_replayed`, the last two where there are such tokens. All values are
    finite; without any token there are only the counts and shares, without a rollout only the counts.
    Raises `DataError` for a missing figure, another shape, a value that is not finite, or a negative age; `ConfigError`
    for impossible edges.
    """
    columns = checked_figures(figures, len(staleness))
    for name, array in (("fresh", fresh), ("correct", correct)):
        if array.shape != staleness.shape:
            raise DataError(f"{name} has shape {array.shape}, expected {staleness.shape}: one value a rollout")
        if array.dtype != np.bool_:
            raise DataError(f"{name} is {array.dtype}, expected bool")
    result = _measures(columns, correct)
    if len(fresh):
        result["fresh_fraction"] = float(fresh.mean())
    for name, chosen in (("entropy_fresh", fresh), ("entropy_replayed", ~fresh)):
        tokens = columns["tokens"][chosen].sum()
        if tokens:
            result[name] = float(columns["entropy_sum"][chosen].sum() / tokens)
    for bucket, rows in age_buckets(staleness, edges).items():
        part = _measures({name: column[rows] for name, column in columns.items()}, correct[rows])
        result |= {f"{bucket}.{name}": value for name, value in part.items()}
    return result


def checked_figures(figures: Mapping[str, Floats], n: int) -> dict[str, Floats]:
    """The columns of `FIGURES` as float64. Raises `DataError` when one is missing, not (n,), not within ±1e100, or not
    what `rollout_figures` could have said: negative, or tokens without a ratio."""
    columns = {}
    for name in FIGURES:
        if name not in figures:
            raise DataError(f"figures lack {name!r}, got {sorted(figures)}")
        column = np.asarray(figures[name], np.float64)
        if column.shape != (n,):
            raise DataError(f"figure {name!r} has shape {column.shape}, expected ({n},): one value a rollout")
        least = 0.0 if name in NOT_NEGATIVE else -LARGEST_FIGURE
        bad = np.flatnonzero(~((column >= least) & (column <= LARGEST_FIGURE)))
        if len(bad):
            got = f"figure {name!r} of rollout {int(bad[0])} is {column[bad[0]]}"
            raise DataError(f"{got}, expected a finite number from {least:g} to {LARGEST_FIGURE:g}")
        columns[name] = column
    silent = np.flatnonzero((columns["tokens"] > 0) & (columns["ratio_square_sum"] == 0))
    if len(silent):
        raise DataError(f"rollout {int(silent[0])} has tokens and no ratio: ratio_square_sum is 0")
    return columns


def _measures(columns: Mapping[str, Floats], correct: NDArray[np.bool_]) -> dict[str, float]:
    trained = columns["tokens"] > 0
    sums = {name: float(column.sum()) for name, column in columns.items()}
    result = {
        "rollouts": float(len(trained)),
        "tokens": sums["tokens"],
        "empty": float(np.count_nonzero(~trained)),
    }
    if len(trained):
        result["correct_fraction"] = float(correct.mean())
    if not trained.any():
        return result
    result |= _of_tokens(sums) | {"ratio_max": float(columns["ratio_max"].max())}
    return result | _of_sequences(columns["log_ratio_sum"][trained], columns["tokens"][trained])


def _of_tokens(sums: Mapping[str, float]) -> dict[str, float]:
    tokens = sums["tokens"]
    return {
        # Token ratios are within exp(±40), so neither their squares nor the sums of these overflow.
        "ess_token_fraction": min(sums["ratio_sum"] ** 2 / (tokens * sums["ratio_square_sum"]), 1.0),
        "kl_k1": -sums["log_ratio_sum"] / tokens,
        "kl_k2": sums["log_ratio_square_sum"] / 2 / tokens,
        "kl_k3": sums["kl_sum"] / tokens,
        "chi2_token": sums["ratio_square_sum"] / tokens - 1,
        "log_ratio_abs": sums["log_ratio_abs_sum"] / tokens,
        "log_ratio_square": sums["log_ratio_square_sum"] / tokens,
        "ratio_mean": sums["ratio_sum"] / tokens,
        "clip_fraction": sums["clipped"] / tokens,
        "entropy": sums["entropy_sum"] / tokens,
    }


def _of_sequences(log_ratio_n: Floats, tokens_n: Floats) -> dict[str, float]:
    bounded_n = log_ratio_n.clip(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return {
        "ess_fraction": effective_sample_fraction(log_ratio_n),
        "kl_sequence_k1": float(-log_ratio_n.mean()),
        "kl_sequence_k2": float(np.square(log_ratio_n).mean() / 2),
        "kl_sequence_k3": float((np.expm1(bounded_n) - bounded_n).mean()),
        "chi2": float(np.expm1(2 * bounded_n).mean()),
        "geometric_ratio": float(np.exp((log_ratio_n / tokens_n).clip(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)).mean()),
    }
