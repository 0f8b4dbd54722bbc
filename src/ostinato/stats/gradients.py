"""The gradient of a batch and of its fresh and replayed halves, from inner products that a trainer hands in."""

from __future__ import annotations

import math

from ostinato.errors import DataError


def gradient_figures(*, fresh_square: float, replayed_square: float, dot: float) -> dict[str, float]:
    """Norms and angle of the two gradients that add up to the gradient of the batch.

        grad_norm             |g_f + g_r| = sqrt(|g_f|^2 + |g_r|^2 + 2 g_f . g_r)
        grad_norm_fresh       |g_f|             grad_norm_replayed     |g_r|
        grad_cosine           g_f . g_r / (|g_f| |g_r|), left out where one of them is 0

    g_f and g_r: gradients, before clipping, of the losses of fresh and of replayed rollouts, each with the denominator
    of the whole batch, so that they add up. `fresh_square` = |g_f|^2, `replayed_square` = |g_r|^2, `dot` = g_f . g_r. A
    cosine near 1: replayed rollouts still push the same way; below 0: they undo what the fresh ones do.
    Raises `DataError` for a number that is not finite, a negative square, or |dot| > |g_f| |g_r| (beyond rounding).
    """
    if not all(map(math.isfinite, (fresh_square, replayed_square, dot))) or min(fresh_square, replayed_square) < 0:
        got = f"fresh_square {fresh_square}, replayed_square {replayed_square}, dot {dot}"
        raise DataError(f"gradients need finite products and squares of at least 0, got {got}")
    fresh, replayed = math.sqrt(fresh_square), math.sqrt(replayed_square)
    largest = fresh * replayed
    if abs(dot) > largest * (1 + 1e-3) + 1e-30:
        raise DataError(f"dot {dot} is larger than the product of the norms, {largest}")
    dot = max(-largest, min(dot, largest))
    figures = {
        # Rounding may leave a tiny negative number where the halves cancel.
        # Quarters, so that the sum of the largest squares is finite.
        "grad_norm": 2 * math.sqrt(max(fresh_square / 4 + replayed_square / 4 + dot / 2, 0.0)),
        "grad_norm_fresh": fresh,
        "grad_norm_replayed": replayed,
    }
    return figures | ({"grad_cosine": dot / largest} if largest else {})
