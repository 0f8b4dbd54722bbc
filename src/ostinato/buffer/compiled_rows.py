"""Compiled work on rows and on what comes in. Importing this module needs numba; `kernels` decides whether to."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

from ostinato.buffer.compiled import prefetch, same_bytes
from ostinato.buffer.tally import CORRECT, INFORMATIVE, NEW, REPEATS, SINCE, STALENESS

IN_THIS_DRAW = -2
"""Stands for the step of the last use while a draw is counted."""

_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_TABLE = types.Array(_I, 2, "C")
_FLAGS = types.Array(types.boolean, 1, "A", readonly=True)
_NUMBERS = types.Array(types.float64, 1, "A", readonly=True)
_FLOATS = types.Array(types.float32, 1, "A", readonly=True)
_OUT, _OUT32 = types.Array(_I, 1, "C"), types.Array(types.int32, 1, "C")
_COUNTS = types.Array(types.int32, 1, "A", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_KINDS: Any = (_I, _I, types.float64, types.int32, types.float32, types.boolean)
_ORDERS: Any = "CFFFFC"
_DRAWN = [types.Array(dtype, 2, "C") for dtype in _KINDS]
BLOCKS: list[types.Type] = [types.Array(dtype, 2, order) for dtype, order in zip(_KINDS, _ORDERS, strict=True)]
_GIVEN: list[Any] = [_COUNTS, *[_COLUMN] * 2, *[_NUMBERS] * 4, *[_COLUMN] * 3, _FLAGS, *[_FLOATS] * 2, _COUNTS]
_compiled: Any = {"nogil": True, "cache": True}

APPENDED: list[types.Type] = [
    _I,
    _COLUMN,
    *BLOCKS,
    *_GIVEN,
    _COLUMN,
    _COLUMN,
    _I,
    types.float64,
    types.int32,
    types.int32,
]
"""Types of what `append` is given."""


@numba.njit([types.void(_COLUMN, block) for block in BLOCKS], **_compiled)
def _fetch(rows: Any, block: Any) -> None:
    """Have the rows of a block fetched, many at once: one after the other they would wait for memory each."""
    begin, last = np.int64(block.ctypes.data), block.shape[0] - 1
    down, along = block.strides
    for i in range(len(rows)):
        for c in range(0, last + 1, last if down < along and last > 0 else 1):
            prefetch(begin + rows[i] * along + c * down)


@numba.njit([types.void(_COLUMN, block, out) for block, out in zip(BLOCKS, _DRAWN, strict=True)], **_compiled)
def _gather(rows: Any, block: Any, out: Any) -> None:
    """Rows of all columns of a block."""
    _fetch(rows, block)
    for c in range(block.shape[0]):
        for i in range(len(rows)):
            out[c, i] = block[c, rows[i]]


@numba.njit(
    types.boolean(
        _COLUMN,
        *BLOCKS,
        *_DRAWN,
        _COLUMN,
        _I,
        types.float64,
        _TABLE,
        types.Array(types.float64, 1, "C"),
        types.Array(_I, 1, "C"),
    ),
    **_compiled,
)
def draw(
    rows: Any,
    ages: Any,
    integers: Any,
    numbers: Any,
    counts: Any,
    settings: Any,
    flags: Any,
    drawn_ages: Any,
    drawn_integers: Any,
    drawn_numbers: Any,
    drawn_counts: Any,
    drawn_settings: Any,
    drawn_flags: Any,
    places: Any,
    train_step: int,
    correct_above: float,
    about: Any,
    sums: Any,
    by_source: Any,
) -> bool:
    """See `Kernels.draw`; `places`: where the columns it reads or writes stand in their blocks. False: a dead row."""
    uses, last_use, version, inserted, reward, deviation, source, alive = places
    _fetch(rows, flags)
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= flags.shape[1] or not flags[alive, rows[i]]:
            return False
    _gather(rows, ages, drawn_ages)
    _gather(rows, integers, drawn_integers)
    _gather(rows, numbers, drawn_numbers)
    _gather(rows, counts, drawn_counts)
    _gather(rows, settings, drawn_settings)
    _gather(rows, flags, drawn_flags)
    for i in range(len(rows)):
        r = rows[i]
        about[0, i] = integers[uses, r]
        integers[uses, r] += 1
        last = integers[last_use, r]
        if last == IN_THIS_DRAW:
            about[1, i] = 0
            sums[REPEATS] += 1
        elif last < 0:
            about[1, i] = -1
            sums[NEW] += 1
        else:
            about[1, i] = train_step - last
            sums[SINCE] += train_step - last
        integers[last_use, r] = IN_THIS_DRAW
        about[2, i] = train_step - drawn_ages[version, i]
        about[3, i] = train_step - drawn_ages[inserted, i]
        sums[STALENESS] += about[2, i]
        sums[CORRECT] += drawn_numbers[reward, i] > correct_above
        sums[INFORMATIVE] += drawn_numbers[deviation, i] > 0
        by_source[drawn_counts[source, i]] += 1
    for i in range(len(rows)):
        integers[last_use, rows[i]] = train_step
    return True


@numba.njit(types.void(*APPENDED), **_compiled)
def append(
    start: int,
    places: Any,
    ages: Any,
    integers: Any,
    numbers: Any,
    counts: Any,
    settings: Any,
    flags: Any,
    prompt_length: Any,
    prompt_id: Any,
    group_id: Any,
    reward: Any,
    mean: Any,
    deviation: Any,
    advantage: Any,
    version_min: Any,
    version_max: Any,
    birth_step: Any,
    truncated: Any,
    temperature: Any,
    top_p: Any,
    top_k: Any,
    offsets: Any,
    ids: Any,
    insert_step: int,
    priority: float,
    group_rows: int,
    source_code: int,
) -> None:
    """See `Kernels.append`; `places`: where the columns stand in their blocks, `ROWS` first, then `NEW`."""
    p = places
    for i in range(len(ids)):
        row = start + i
        integers[:, row] = -1  # the last use among them, and the handles
        counts[p[0], row] = prompt_length[i]
        integers[p[1], row], integers[p[2], row] = prompt_id[i], group_id[i]
        numbers[p[3], row], numbers[p[4], row] = reward[i], mean[i]
        numbers[p[5], row], numbers[p[6], row] = deviation[i], advantage[i]
        ages[p[7], row], integers[p[8], row], ages[p[9], row] = version_min[i], version_max[i], birth_step[i]
        flags[p[10], row] = truncated[i]
        settings[p[11], row], settings[p[12], row] = temperature[i], top_p[i]
        counts[p[13], row] = top_k[i]
        counts[p[14], row] = offsets[i + 1] - offsets[i]
        ages[p[15], row], integers[p[16], row] = ids[i], 0
        ages[p[18], row] = insert_step
        numbers[p[19], row] = priority
        counts[p[20], row], counts[p[21], row] = group_rows, source_code
        flags[p[22], row] = True


@numba.njit(_I(_COLUMN, BLOCKS[1], BLOCKS[3], BLOCKS[5], _COLUMN, _OUT, _OUT32, _TABLE, _I, _I), **_compiled)
def kill(
    rows: Any,
    integers: Any,
    counts: Any,
    flags: Any,
    places: Any,
    uses: Any,
    lengths: Any,
    handles: Any,
    first: int,
    span: int,
) -> int:
    """See `Kernels.kill`; `places` of uses, length and alive. Returns the first live row from `first` on, or `span`."""
    kept = len(integers) - len(handles)  # handles stand behind the other integers
    for i in range(len(rows)):
        r = rows[i]
        flags[places[2], r] = False
        uses[i], lengths[i] = integers[places[0], r], counts[places[1], r]
        for c in range(len(handles)):
            handles[c, i] = integers[kept + c, r]
    while first < span and not flags[places[2], first]:
        first += 1
    return first


@numba.njit(types.boolean(_BYTES, _COLUMN, _COLUMN, _I), **_compiled)
def all_equal(values: Any, starts: Any, lengths: Any, item: int) -> bool:
    """Whether all spans hold the same bytes."""
    for i in range(1, len(starts)):
        if lengths[i] != lengths[0]:
            return False
    begin = np.int64(values.ctypes.data)
    for i in range(1, len(starts)):
        if not same_bytes(begin + starts[0] * item, begin + starts[i] * item, lengths[0] * item):
            return False
    return True
