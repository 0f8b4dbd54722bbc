"""Columns of `Rollouts` out of rows and values as engines and users give them: checked, and packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.ragged import as_array, described, fits, offsets_of

LARGEST_ID = np.iinfo(np.int32).max
"""The largest token id."""

IntRows = Sequence[Sequence[int] | NDArray[np.integer[Any]]]


def check_lengths(what: str, rows: Sequence[Any], lengths: list[int], of: str) -> None:
    """Raise `DataError` unless rows are of these lengths."""
    found = [*map(len, rows)]
    if found != lengths:
        i = next(i for i, length in enumerate(lengths) if found[i] != length)
        raise DataError(f"rollout {i} has {lengths[i]} {of} but {found[i]} {what}")


def packed_ids(rows: IntRows, lengths: list[int], parts: int = 1) -> NDArray[np.int32]:
    """Rows of token ids one after the other, `parts` of them a rollout: int32. Raises `DataError`, naming the rollout.

    `lengths`: tokens of each rollout.
    """
    ids = joined(rows, np.dtype(np.int32))
    if ids is None:
        arrays = [as_array(row, f"token ids of rollout {i // parts}") for i, row in enumerate(rows)]
        for i, row in enumerate(arrays):
            if (row.dtype.kind not in "iu" and row.size) or row.ndim != 1:
                raise DataError(f"token ids of rollout {i // parts} are {described(row)}, expected one row of integers")
        ids = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    if ids.size and (ids.min() < 0 or (ids.dtype != np.int32 and ids.max() > LARGEST_ID)):
        bad = np.flatnonzero((ids < 0) | (ids > LARGEST_ID))
        row_number = np.searchsorted(offsets_of(lengths), bad[0], "right") - 1
        raise DataError(f"rollout {row_number} has the token id {int(ids[bad[0]])}, expected 0 to 2^31 - 1")
    return ids.astype(np.int32, copy=False)


def joined(rows: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Rows one after the other where each is an array of this dtype and one dimension, else None."""
    try:
        if {row.dtype for row in rows} != {dtype}:
            return None
        result = np.concatenate(rows)
    except (AttributeError, TypeError, ValueError):  # no arrays, or not of one dimension
        return None
    return result if result.ndim == 1 else None


def packed_flags(rows: Sequence[Any], name: str) -> NDArray[np.bool_]:
    """Rows of booleans one after the other. Raises `DataError`, naming the rollout, where one holds anything else."""
    flags = joined(rows, np.dtype(np.bool_))
    if flags is not None:
        return flags
    arrays = [as_array(row, name) for row in rows]
    for i, row in enumerate(arrays):
        if (row.dtype != np.bool_ and row.size) or row.ndim != 1:
            raise DataError(f"{name} of rollout {i} is {described(row)}, expected one row of booleans")
    return np.concatenate(arrays, dtype=np.bool_, casting="unsafe") if arrays else np.empty(0, np.bool_)


def flags_after(before: Sequence[int], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A flag for every token of rows with these offsets, False for as many as are to be at the beginning of each."""
    flags = np.ones(offsets[-1], np.bool_)
    for start, count in zip(offsets.tolist(), before, strict=False):
        flags[start : start + count] = False
    return flags


def content_ids(rows: Sequence[NDArray[Any]]) -> list[int]:
    """A stable number of 63 bits for each row, the same for the same bytes."""
    known: dict[bytes, int] = {}
    ids = []
    for row in rows:
        content = row.tobytes()
        if content not in known:
            known[content] = int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1
        ids.append(known[content])
    return ids


def counts_before_true(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many flags of each row of a packed column stand before the first that is True, all where none is."""
    ends = np.append(np.flatnonzero(flags), len(flags))
    first: NDArray[np.int64] = ends[np.searchsorted(ends, offsets[:-1])]
    return np.minimum(first, offsets[1:]) - offsets[:-1]


def packed_logprobs(rows: Sequence[Any], before: Sequence[int] = ()) -> NDArray[np.float32]:
    """Rows of numbers one after the other, each behind as many zeros as are to stand before it: float32."""
    parts, zeros = rows, np.zeros(max(before, default=0), np.float32)
    if before:
        parts = [part for count, row in zip(before, rows, strict=True) for part in (zeros[:count], row)]
    try:
        values = np.concatenate(parts, dtype=np.float32, casting="unsafe") if len(parts) else zeros
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises any of them for what numpy cannot hold
        raise DataError(f"log-probs are no rows of numbers: {error}; of tensors give .detach().float().cpu()") from None
    if values.ndim != 1:
        raise DataError(f"log-probs are rows of shape {values.shape[1:]}, expected one number a token")
    return values


def row_column(name: str, value: Any, dtype: type[np.generic], n: int) -> NDArray[Any]:
    """One value for all rows, or one a row, as a new array of this dtype, (n,). Raises `DataError`."""
    simple = (type(value) is float and dtype is np.float64) or (type(value) is int and dtype is np.int64)
    if simple and abs(value) < 1 << 62:  # whatever else may come is looked at
        column = np.empty(n, dtype)
        column.fill(value)
        return column
    given = as_array(value, name)
    if given.shape == (n,) and given.dtype.isnative:
        if given.dtype.type is dtype:
            return given if type(value) is list else given.copy()  # a list has just become an array of its own
        if given.dtype.type is np.int64 and dtype is np.int32:
            column = given.astype(np.int32)
            if not np.count_nonzero(column != given):
                return column
    if given.shape not in ((), (n,)) or (n and not fits(given, dtype)):
        raise DataError(f"{name} is {described(given)}, expected {dtype.__name__.rstrip('_')} () or ({n},)")
    return np.array(np.broadcast_to(given.astype(dtype), (n,)))


def row_columns(n: int, given: Mapping[str, Any], types: Mapping[str, type[np.generic]]) -> dict[str, NDArray[Any]]:
    """All row columns of n rollouts: the given ones, see `row_column`, and what stands where nothing is given.

    That is 0; temperature and top_p: 1; group_id: the row number; policy_version_max: policy_version_min.
    """
    if not given.keys() <= types.keys():
        name = next(name for name in given if name not in types)
        raise DataError(f"unknown rollout column {name!r}, expected one of {sorted(types)}")
    columns = {
        name: row_column(name, given[name], dtype, n) if name in given else np.zeros(n, dtype)
        for name, dtype in types.items()
    }
    if "group_id" not in given:
        columns["group_id"] = np.arange(n)
    for name in ("temperature", "top_p"):
        if name not in given:
            columns[name].fill(1)
    if "policy_version_min" in given and "policy_version_max" not in given:
        columns["policy_version_max"] = columns["policy_version_min"].copy()
    return columns
