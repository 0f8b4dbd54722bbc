"""One draw for several trainers: who trains on which rollouts, and their figures back in the order of the draw."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.protocols import Draw, Trained
from ostinato.ragged import row_lengths, row_numbers
from ostinato.setting_checks import check_whole


def token_shares(lengths: NDArray[np.int64], trainers: int) -> list[NDArray[np.int64]]:
    """Rows for each of `trainers`, every row once, so that all have about the same number of tokens.

    The longest first, each to whoever has the fewest tokens so far; ties go to the fewest rollouts, then to the first.
    No two shares differ by more than the longest rollout. Rows of a share are in ascending order; with fewer rollouts
    than trainers some shares are empty. `lengths`: tokens of each rollout, `draw.rollouts.lengths`.
    Source: Graham 1969, SIAM J. Appl. Math. 17(2), longest processing time first (at most 4/3 of the best maximum).
    """
    trainers = check_whole("trainers", trainers, least=1)
    lengths = row_lengths(lengths)
    loads = [(0, 0, trainer) for trainer in range(trainers)]
    shares: list[list[int]] = [[] for _ in range(trainers)]
    for row in np.argsort(-lengths, kind="stable"):
        tokens, rollouts, trainer = loads[0]
        shares[trainer].append(int(row))
        heapq.heapreplace(loads, (tokens + int(lengths[row]), rollouts + 1, trainer))
    return [np.array(sorted(share), np.int64) for share in shares]


def select_draw(draw: Draw, rows: NDArray[np.int64]) -> Draw:
    """The given rows of a draw. Raises `DataError` when they are no row numbers of it."""
    rows = row_numbers(rows, len(draw))
    columns = {item.name: getattr(draw, item.name)[rows] for item in fields(Draw) if item.name != "rollouts"}
    return Draw(rollouts=draw.rollouts.select(rows), **columns)


def in_draw_order(trained: Trained, shares: Sequence[NDArray[Any]]) -> Trained:
    """What the trainers of these shares of one draw tell, its figures in the order of the draw.

    Raises `DataError` when the figures do not have one value for each row of the shares, or a row occurs twice.
    """
    order = np.concatenate([np.asarray(share, np.int64) for share in shares]) if shares else np.empty(0, np.int64)
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise DataError(f"shares hold {len(order)} rows, expected each row of the draw once")
    figures = {}
    for name, values in trained.figures.items():
        if values.shape != order.shape:
            raise DataError(f"figure {name!r} has shape {values.shape}, expected {order.shape}: one value a rollout")
        figures[name] = np.empty_like(values)
        figures[name][order] = values
    return replace(trained, figures=figures)
