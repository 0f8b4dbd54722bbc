"""What is refused at the door of a buffer, and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.padding import RightPadded
from ostinato.buffer.table import Table
from ostinato.buffer.tally import FINITE_ROWS
from ostinato.buffer.workspace import FreshMemory, Workspace
from ostinato.errors import ConfigError, DataError
from ostinato.ragged import Ragged, as_array, check_offsets, described, fits
from ostinato.rollouts import ROW_COLUMNS, Rollouts, extra_layouts
from ostinato.setting_checks import MOST, check_whole

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


_WHOLE = (int, np.integer)
_RIGHT_PADDED = RightPadded()


def check_count(name: str, value: Any, least: int = 0) -> int:
    """The number as a plain int. Raises `DataError` for anything but an integer from `least` up."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, _WHOLE)):
        raise DataError(f"{name} is {value!r}, expected a whole number")
    number = int(value)
    if not least <= number < MOST:
        raise DataError(f"{name} is {number}, expected {least} or more, below 2^62")
    return number


def check_step(train_step: Any, now: int) -> int:
    """The train step as a plain int. Raises `DataError` for no integer, one before `now`, or one of 2^62 or more."""
    step: int = train_step if type(train_step) is int else check_count("train step", train_step, -MOST)
    if step < now:
        raise DataError(f"train step {step} comes after train step {now}: steps must not fall")
    if step >= MOST:
        raise DataError(f"train step is {step}, expected one below 2^62")
    return step


def check_setting(name: str, value: Any, least: int, below: int = MOST) -> int:
    """The setting as a plain int. Raises `ConfigError` unless it is an integer from `least` up and below a bound."""
    check_whole(name, value, least=least)
    if value >= below:
        raise ConfigError(f"{name} must be below {below}, got {value if value < 1 << 64 else 'much more'}")
    return int(value)


def check_rollouts(rollouts: Any) -> None:
    """Raise `DataError` for anything but `Rollouts`, or ragged extra columns changed so that they contradict."""
    if not isinstance(rollouts, Rollouts):
        raise DataError(f"rollouts are {described(rollouts)}, expected Rollouts")
    for column in rollouts.extras.values():
        if isinstance(column, Ragged):
            check_offsets(column.offsets, len(column.values))


def check_memory(out: Any) -> Workspace:
    """Memory to draw to, fresh where none is given. Raises `DataError` for anything but a `Workspace`."""
    if out is None:
        return FreshMemory()
    if not isinstance(out, Workspace):
        raise DataError(f"out is {described(out)}, expected a Workspace")
    return out


def check_layout(layout: Any) -> Any:
    """How to pad, `RightPadded()` where nothing is said. Raises `DataError` for anything that is no layout."""
    if layout is None:
        return _RIGHT_PADDED
    if isinstance(layout, type) or not hasattr(layout, "columns") or not hasattr(layout, "pad_token"):
        raise DataError(f"layout is {layout!r}, expected RightPadded(...) or PromptsLeft(...)")
    return layout


def checked_rows(table: Table, given: object, who: str) -> NDArray[np.int64]:
    """Rows to remove, ascending. Raises `DataError` naming `who` unless they are live ones, int64, none twice."""
    if not isinstance(given, np.ndarray) or given.dtype != np.int64 or given.ndim != 1:
        raise DataError(f"{who} gave {described(given)}, expected row numbers int64 (k,)")
    rows: NDArray[np.int64] = given
    if not len(rows):
        return rows
    if not (rows[1:] > rows[:-1]).all():
        rows = np.sort(rows)
        twice = np.flatnonzero(rows[1:] == rows[:-1])
        if len(twice):
            raise DataError(f"{who} gave row {rows[twice[0]]} twice")
    if rows[0] < 0 or rows[-1] >= table.span:
        raise DataError(f"{who} gave rows from {rows[0]} to {rows[-1]}, expected 0 to {table.span - 1}")
    alive = table["alive"][rows]
    if not alive.all():
        raise DataError(f"{who} gave row {rows[alive.argmin()]}, whose rollout has left")
    return rows


def check_extras(rollouts: Rollouts, held: Mapping[str, str]) -> None:
    """Raise `DataError` for other extra columns than those held."""
    if (rollouts.extras or held) and (given := extra_layouts(rollouts)) != held:
        raise DataError(f"extra columns {given} differ from those already held, {dict(held)}")


def is_sound(rollouts: Rollouts, train_step: int) -> bool:
    """Whether `find_fault` finds nothing, in a third of the time."""
    offsets, oldest, newest = rollouts.offsets, rollouts.policy_version_min, rollouts.policy_version_max
    wrong = (rollouts.completion_lengths | rollouts.prompt_length) < 0  # so lengths are not negative either
    wrong |= newest > train_step
    wrong |= oldest > newest
    if np.count_nonzero(wrong) or offsets[0] != 0 or offsets[-1] != len(rollouts.tokens):
        return False
    numbers = np.concatenate([getattr(rollouts, name) for name in FINITE_ROWS])
    return all(np.count_nonzero(np.isfinite(a)) == len(a) for a in (numbers, rollouts.behavior_logprobs))


def find_fault(rollouts: Rollouts, train_step: int) -> None:
    """Raise a `DataError` that names what `Kernels.inspect` found wrong."""
    check_offsets(rollouts.offsets, len(rollouts.tokens))
    rollouts.check_prompts()
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


def checked_limiter(limiter: Any) -> Any:
    """The limiter. Raises `ConfigError` for a class or anything else that is none."""
    asked = ("check", "origin", "can_add", "can_sample")
    if isinstance(limiter, type) or not all(hasattr(limiter, name) for name in asked):
        raise ConfigError(f"limiter is {limiter!r}, expected an instance such as MinSize(1)")
    return limiter


def checked_admission(rules: Any) -> tuple[Any, ...]:
    """The admission rules. Raises `ConfigError` for anything but a list of them."""
    if isinstance(rules, str) or not isinstance(rules, Iterable):
        raise ConfigError(f"admission is a list of rules, got {rules!r}")
    found = tuple(rules)
    for rule in found:
        if isinstance(rule, type) or not callable(rule) or not hasattr(rule, "name"):
            raise ConfigError(f"admission holds {rule!r}, expected rules with a `name` and a call")
    return found


def check_ids(ids: Any, name: str) -> NDArray[np.int64]:
    """Ids as int64 (k,). Raises `DataError` for anything but a row of integers."""
    array = as_array(ids, name)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(f"{name} are {described(array)}, expected integers (k,)")
    return array.astype(np.int64)


def check_priorities(values: Any, n: int, ids: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Priorities as float64 (n,). Raises `DataError` unless they are finite, not negative and n."""
    array = as_array(values, "priorities")
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
        array = as_array(value, name)
        dtype: Any = ROW_COLUMNS[name]
        if array.shape not in ((), (n,)) or (n and not fits(array, dtype)):
            raise DataError(f"{name} is {described(array)}, expected {dtype.__name__.rstrip('_')} ({n},)")
        with np.errstate(over="ignore"):
            column = np.broadcast_to(array, (n,)).astype(dtype)
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise DataError(f"{name} holds a number that is not finite")
        result[name] = column
    return result
