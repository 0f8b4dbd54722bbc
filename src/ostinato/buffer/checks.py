"""What is refused at the door of a buffer, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.tally import FINITE_ROWS
from ostinato.errors import DataError
from ostinato.ragged import described, fits
from ostinato.rollouts import ROW_COLUMNS, Rollouts, extra_layouts

WRITABLE = (
    "reward",
    "group_reward_mean",
    "group_reward_std",
    "advantage",
    "truncated",
    "temperature",
    "top_p",
    "top_k",
)
"""Row columns that may be written back; the others say what a rollout is and where it comes from."""


def check_extras(rollouts: Rollouts, held: Mapping[str, str]) -> None:
    """Raise `DataError` for other extra columns than those held."""
    if (rollouts.extras or held) and (given := extra_layouts(rollouts)) != held:
        raise DataError(f"extra columns {given} differ from those already held, {dict(held)}")


def find_fault(rollouts: Rollouts, train_step: int) -> None:
    """Raise a `DataError` that names what `Kernels.inspect` found wrong."""
    for name in ("policy_version_min", "policy_version_max"):
        newest = int(getattr(rollouts, name).max(initial=train_step))
        if newest > train_step:
            raise DataError(f"{name} {newest} at train step {train_step}: rollouts come from the past")
    bad = np.flatnonzero(rollouts.policy_version_min > rollouts.policy_version_max)
    if len(bad):
        versions = rollouts.policy_version_min[bad[0]], rollouts.policy_version_max[bad[0]]
        raise DataError(f"rollout {bad[0]} has policy_version_min {versions[0]} above policy_version_max {versions[1]}")
    for name in FINITE_ROWS:
        column = getattr(rollouts, name)
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise DataError(f"{name} of rollout {row} is {column[row]}, expected a finite number")
    bad = np.flatnonzero(~np.isfinite(rollouts.behavior_logprobs))
    if len(bad):
        row = int(np.searchsorted(rollouts.offsets, bad[0], "right")) - 1
        raise DataError(
            f"behavior_logprobs of rollout {row}, token {bad[0] - int(rollouts.offsets[row])}, is "
            f"{rollouts.behavior_logprobs[bad[0]]}, expected a finite number; "
            "admission=[FiniteLogprobs()] leaves such out"
        )


def check_ids(ids: Any, name: str) -> NDArray[np.int64]:
    """Ids as int64 (k,). Raises `DataError` for anything but a row of integers."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(f"{name} are {described(array)}, expected integers (k,)")
    return array.astype(np.int64)


def check_priorities(values: Any, n: int, ids: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Priorities as float64 (n,). Raises `DataError` unless they are finite, not negative and n."""
    array = np.asarray(values)
    if array.shape not in ((), (n,)) or array.dtype.kind not in "fiu":
        raise DataError(f"priorities are {described(array)}, expected numbers ({n},)")
    array = np.broadcast_to(array, (n,)).astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        which = f"rollout id {ids[bad[0]]}" if ids is not None else f"rollout {bad[0]}"
        raise DataError(f"priority of {which} is {array[bad[0]]}, expected a finite number >= 0")
    return array


def check_written(columns: Mapping[str, Any], n: int) -> dict[str, NDArray[Any]]:
    """Columns to write back, each (n,). Raises `DataError` for other names, shapes, kinds or numbers not finite."""
    result: dict[str, NDArray[Any]] = {}
    for name, value in columns.items():
        if name not in WRITABLE:
            raise DataError(f"column {name!r} cannot be written back, expected one of {sorted(WRITABLE)}")
        array = np.asarray(value)
        dtype: Any = ROW_COLUMNS[name]
        if array.shape not in ((), (n,)) or (n and not fits(array, dtype)):
            raise DataError(f"{name} is {described(array)}, expected {dtype.__name__.rstrip('_')} ({n},)")
        with np.errstate(over="ignore"):
            column = np.broadcast_to(array, (n,)).astype(dtype)
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise DataError(f"{name} holds a number that is not finite")
        result[name] = column
    return result
