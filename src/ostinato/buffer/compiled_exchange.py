"""The commonest add in one compiled call: rows come, as many of the oldest leave. Importing this module needs numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

from ostinato.buffer.compiled import memcpy, same_bytes
from ostinato.buffer.compiled_given import carray, pointer, row_at, stack_at, table_at
from ostinato.buffer.compiled_inspect import LOGPROBS, TOKENS, inspect_rows, located
from ostinato.buffer.compiled_rows import APPENDED, BLOCKS, append

_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_SPANS, _TABLE, _OUT = types.Array(_I, 2, "F"), types.Array(_I, 2, "C"), types.Array(_I, 1, "C")
_TOKENS, _LOGPROBS, _MASK = (
    types.Array(dtype, 1, "C", readonly=True) for dtype in (types.int32, types.float32, types.boolean)
)
_GIVEN = types.Tuple(APPENDED[8:22])  # type: ignore[no-untyped-call]
_NUMBERS, _GAP = types.Tuple([_I, *APPENDED[24:]]), types.UniTuple(_I, 5)  # type: ignore[no-untyped-call]
_DONE = types.Tuple([_I] * 8)  # type: ignore[no-untyped-call]
NOTHING = (-1, 0, 0, 0, 0, 0, -1, 0)
_compiled: Any = {"nogil": True, "cache": True}
_inner: Any = {**_compiled, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # only called from compiled code


@numba.njit(types.boolean(_COLUMN, types.Array(types.int32, 1, "A", readonly=True), _TABLE), **_inner)
def _one_group(group_id: Any, prompt_length: Any, rows: Any) -> bool:
    """Whether all rollouts share their group and their prompt."""
    for i in range(1, len(group_id)):
        if group_id[i] != group_id[0] or prompt_length[i] != prompt_length[0]:
            return False
        if not same_bytes(rows[TOKENS, 0], rows[TOKENS, i], 4 * prompt_length[0]):
            return False
    return True


@numba.njit(_I(_SPANS, _COLUMN, _TABLE), **_inner)
def _release(spans: Any, handles: Any, left: Any) -> int:
    """Mark spans as free; `left`: the slabs they leave one after the other, and items that leave each. How many, or -1.

    -1: a row has no span, and nothing is done.
    """
    for i in range(len(handles)):
        if handles[i] < 0:
            return -1
    runs = 0
    for i in range(len(handles)):
        h = handles[i]
        if runs == 0 or left[0, runs - 1] != spans[0, h]:
            left[0, runs], left[1, runs] = spans[0, h], 0
            runs += 1
        left[1, runs - 1] += spans[2, h]
        spans[0, h] = -1
    return runs


@numba.njit(types.UniTuple(_I, 2)(_TABLE, *BLOCKS, _COLUMN, _OUT, _I), **_inner)  # type: ignore[no-untyped-call]
def _leave(
    departed: Any,
    ages: Any,
    integers: Any,
    numbers: Any,
    counts: Any,
    settings: Any,
    flags: Any,
    places: Any,
    users: Any,
    first: int,
) -> tuple[int, int]:
    """Mark the oldest rows as dead, note what is left to do about them; the first live row, prompts nobody uses."""
    length, uses, alive, payload, prompt = places[14], places[16], places[22], places[23], places[24]
    unused = 0
    for i in range(departed.shape[1]):
        while not flags[alive, first]:
            first += 1
        flags[alive, first] = False
        departed[0, i], departed[1, i] = integers[uses, first], counts[length, first]
        departed[2, i], left = integers[payload, first], integers[prompt, first]
        if left >= 0:
            users[left] -= 1
            if users[left] == 0:
                departed[3, unused] = left
                unused += 1
    while not flags[alive, first]:  # there are new ones
        first += 1
    return first, unused


@numba.njit(types.boolean(_COLUMN, _SPANS, _COLUMN, *[_I] * 3), **_inner)
def _is_prompt(users: Any, spans: Any, base: Any, tokens: int, length: int, handle: int) -> bool:
    """Whether a prompt that is in use holds what stands at an address, so many tokens."""
    if handle < 0 or users[handle] <= 0 or spans[2, handle] != length:
        return False
    return bool(same_bytes(tokens, base[spans[0, handle]] + 4 * spans[1, handle], 4 * length))


@numba.njit(_DONE(_I, _NUMBERS, _GAP, _GIVEN, _COLUMN, _TABLE), **_inner)
def _exchange(arrays: int, numbers: Any, gap: Any, given: Any, offsets: Any, rows: Any) -> Any:
    """`exchange` of token rows at addresses, see `located`."""
    start, train_step = numbers[:2]
    first, slab, place, room, prompt = gap
    prompt_length, n, kinds = given[0], len(given[0]), np.empty(len(given[0]), np.int8)
    if inspect_rows(rows, (offsets, prompt_length, *given[3:9], train_step, kinds)) != 0:
        return NOTHING
    if not _one_group(given[2], prompt_length, rows):
        return NOTHING
    places, integers = row_at(arrays, 0, np.int64), stack_at(arrays, 2, np.int64)
    table = (
        table_at(arrays, 1, np.int64),
        integers,
        stack_at(arrays, 3, np.float64),
        stack_at(arrays, 4, np.int32),
        stack_at(arrays, 5, np.float32),
        table_at(arrays, 6, np.bool_),
    )
    append(start, places, *table, *given, offsets, row_at(arrays, 7, np.int64), *numbers[1:])  # type: ignore[call-arg]
    departed, handles, users = table_at(arrays, 8, np.int64), row_at(arrays, 9, np.int64), row_at(arrays, 11, np.int64)
    spans, leaving = stack_at(arrays, 10, np.int64), departed.shape[1]
    first, unused = _leave(departed, *table, places, users, first)
    runs = _release(spans, departed[2], departed[4:]) if leaving > 0 else 0
    if runs < 0:
        return first, -1, unused, -1, 0, 0, -1, 0
    for run in range(runs):
        if departed[4, run] == slab:  # it may begin anew
            room = -1
    token_base, logprob_base = row_at(arrays, 12, np.int64), row_at(arrays, 13, np.int64)
    prompts = stack_at(arrays, 14, np.int64), row_at(arrays, 15, np.int64)
    shared = n if _is_prompt(users, *prompts, rows[TOKENS, 0], prompt_length[0], prompt) else 0
    placed = items = 0
    for i in range(n):
        h = departed[2, i] if leaving > 0 else handles[i]
        count, behind = offsets[i + 1] - offsets[i] - prompt_length[i], 4 * np.int64(prompt_length[i])
        if placed == i and items + count <= room:
            spans[0, h], spans[1, h], spans[2, h] = slab, place + items, count
            memcpy(token_base[slab] + 4 * (place + items), rows[TOKENS, i] + behind, 4 * count)
            memcpy(logprob_base[slab] + 4 * (place + items), rows[LOGPROBS, i] + behind, 4 * count)
            placed, items = i + 1, items + count
        integers[places[23], start + i] = h
        if shared > 0:
            integers[places[24], start + i] = prompt
    if shared > 0:
        users[prompt] += n
    slab, gone = (departed[4, 0], departed[5, 0]) if runs > 0 else (-1, 0)
    return first, runs, unused, placed, items, shared, slab, gone


@numba.njit(_DONE(_I, _NUMBERS, _GAP, _GIVEN, _COLUMN, _TOKENS, _MASK, _LOGPROBS), **_compiled)
def exchange(
    arrays: int, numbers: Any, gap: Any, given: Any, offsets: Any, tokens: Any, mask: Any, logprobs: Any
) -> Any:
    """See `Kernels.exchange`; `numbers`: the first row, and what is settled; `given`: the row columns.

    `arrays`: the address of a row of arrays. Told one by one they would take as long as the rest. They are where the
    columns of rows and what is new stand in their blocks, the blocks, ids, departed, handles, spans of tokens, users
    of prompts, addresses of the slabs of tokens and of log-probs, spans of prompts and addresses of theirs.

    Returns -1 and nothing is done, or the first live row, slabs left, prompts nobody uses, rows placed, their items,
    rows that use `prompt` now, the first of the slabs and what left it.
    """
    columns: Any = np.int64(tokens.ctypes.data), np.int64(mask.ctypes.data), np.int64(logprobs.ctypes.data)
    rows = located(*columns, offsets, len(logprobs))  # type: ignore[call-arg]
    return _exchange(arrays, numbers, gap, given, offsets, rows)


@numba.njit(_DONE(_I, _NUMBERS, _GAP, _COLUMN, _OUT, _TABLE), **_compiled)
def exchange_rows(arrays: int, numbers: Any, gap: Any, columns: Any, offsets: Any, rows: Any) -> Any:
    """`exchange` of what `compiled_given.read` found; `columns`: addresses. Token ids below 0 stand against it too."""
    n, signs = rows.shape[1], np.int32(0)
    for i in range(n):
        for token in carray(pointer(rows[TOKENS, i]), offsets[i + 1] - offsets[i], np.int32):
            signs |= token
    if signs < 0:
        return NOTHING
    given = (
        carray(pointer(columns[0]), n, np.int32),
        carray(pointer(columns[1]), n, np.int64),
        carray(pointer(columns[2]), n, np.int64),
        carray(pointer(columns[3]), n, np.float64),
        carray(pointer(columns[4]), n, np.float64),
        carray(pointer(columns[5]), n, np.float64),
        carray(pointer(columns[6]), n, np.float64),
        carray(pointer(columns[7]), n, np.int64),
        carray(pointer(columns[8]), n, np.int64),
        carray(pointer(columns[9]), n, np.int64),
        carray(pointer(columns[10]), n, np.bool_),
        carray(pointer(columns[11]), n, np.float32),
        carray(pointer(columns[12]), n, np.float32),
        carray(pointer(columns[13]), n, np.int32),
    )
    return _exchange(arrays, numbers, gap, given, offsets, rows)
