"""The common form of every contestant's batch, and the check that the batch is right before anyone takes the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .profiles import Source


class WrongBatchError(Exception):
    """A contestant gave back something else than what it was given."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of B rollouts, packed. `uid` (B,) says which they should be, `lengths` (B,) how the tokens divide."""

    tokens: NDArray[Any]
    mask: NDArray[Any]
    logprobs: NDArray[Any]
    lengths: NDArray[np.int64]
    uid: NDArray[np.int64]


def unpadded(padded: dict[str, Any], lengths: NDArray[Any], uid: NDArray[Any], starts: NDArray[Any] | int = 0) -> Rows:
    """Cut rows of `lengths` tokens, from column `starts` on, out of `tokens, mask, logprobs` of shape (B, columns)."""
    lengths, uid = np.asarray(lengths, np.int64).reshape(-1), np.asarray(uid, np.int64).reshape(-1)
    first = np.broadcast_to(np.asarray(starts, np.int64), lengths.shape)[:, None]
    columns = np.arange(np.asarray(padded["tokens"]).shape[1])[None, :]
    inside = (columns >= first) & (columns < first + lengths[:, None])
    tokens, mask, logprobs = (np.asarray(padded[name])[inside] for name in ("tokens", "mask", "logprobs"))
    return Rows(tokens, mask, logprobs, lengths, uid)


def verify(name: str, rows: Rows, source: Source, expected: int) -> None:
    """Compare every token, mask and log-prob with the source. Raises `WrongBatchError` naming what differs."""
    row = rows.uid % len(source)
    if len(row) != expected:
        raise WrongBatchError(f"{name}: batch of {len(row)} instead of {expected}")
    if not np.array_equal(rows.lengths, source.lengths[row]):
        raise WrongBatchError(f"{name}: lengths differ")
    starts = np.concatenate([[0], np.cumsum(rows.lengths)[:-1]])
    positions = np.arange(int(rows.lengths.sum())) + np.repeat(source.offsets[row] - starts, rows.lengths)
    for field in ("tokens", "mask", "logprobs"):
        if not np.array_equal(getattr(rows, field), getattr(source, field)[positions]):
            raise WrongBatchError(f"{name}: {field} differ")
