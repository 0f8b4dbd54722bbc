"""Columns of texts as bytes: every row at its own width, whatever the widths of the others.

numpy gives all texts of an array one width. Here a row of k texts (k = 1 unless the column is ragged or its rows have a
shape) is its own width in characters, uint32, and k texts of that width; a row of no texts is nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.ragged import offsets_of

HEADER = np.dtype(np.uint32)


def are_texts(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether items of this shape consist of texts or byte strings."""
    return dtype.kind in "SU" and 0 not in shape


def encoded(values: NDArray[Any], bounds: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The rows `values[bounds[i]:bounds[i+1]]` as bytes, one after the other, and where each begins, (n + 1,)."""
    rows = [_row(values[start:stop].reshape(-1)) for start, stop in pairwise(bounds.tolist())]
    return np.concatenate([np.empty(0, np.uint8), *rows]), offsets_of([len(row) for row in rows])


def decoded(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], kind: str, shape: tuple[int, ...]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Inverse of `encoded` for texts of this kind ("S" or "U"): values (L, *shape) and the bounds of the rows."""
    rows = []
    for start, stop in pairwise(offsets.tolist()):
        if start == stop:
            rows.append(np.empty((0, *shape), f"{kind}1"))
            continue
        width = int(data[start : start + HEADER.itemsize].view(HEADER)[0])
        rows.append(data[start + HEADER.itemsize : stop].view(f"{kind}{width}").reshape(-1, *shape))
    values = np.concatenate([np.empty((0, *shape), f"{kind}1"), *rows])
    return values, offsets_of([len(row) for row in rows])


def _row(texts: NDArray[Any]) -> NDArray[np.uint8]:
    if not len(texts):
        return np.empty(0, np.uint8)
    width = max(1, int(np.char.str_len(texts).max()))
    own = texts.astype(f"{texts.dtype.kind}{width}")
    return np.concatenate([np.array([width], HEADER).view(np.uint8), own.view(np.uint8)])
