"""The commonest add in one compiled call: rows come, as many of the oldest leave. Importing this module needs numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

from ostinato.buffer.compiled import memcpy, same_bytes
from ostinato.buffer.compiled_rows import APPENDED, BLOCKS, append, inspect

_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_SPANS, _TABLE, _OUT = types.Array(_I, 2, "F"), types.Array(_I, 2, "C"), types.Array(_I, 1, "C")
_TOKENS, _LOGPROBS, _MASK = (
    types.Array(dtype, 1, "C", readonly=True) for dtype in (types.int32, types.float32, types.boolean)
)
_APPENDED = types.Tuple(APPENDED)  # type: ignore[no-untyped-call]
_SIX = types.Tuple([_I] * 6)  # type: ignore[no-untyped-call]
_compiled: Any = {"nogil": True, "cache": True}


@numba.njit(types.boolean(_COLUMN, _COLUMN, types.Array(types.int32, 1, "A", readonly=True), _TOKENS), **_compiled)
def _one_group(group_id: Any, offsets: Any, prompt_length: Any, tokens: Any) -> bool:
    """Whether all rollouts share their group and their prompt."""
    begin = np.int64(tokens.ctypes.data)
    for i in range(1, len(group_id)):
        if group_id[i] != group_id[0] or prompt_length[i] != prompt_length[0]:
            return False
        if not same_bytes(begin, begin + 4 * offsets[i], 4 * prompt_length[0]):
            return False
    return True


@numba.njit(_I(_SPANS, _COLUMN, _TABLE), **_compiled)
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


@numba.njit(types.UniTuple(_I, 2)(_TABLE, *BLOCKS, _COLUMN, _OUT, _I), **_compiled)  # type: ignore[no-untyped-call]
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


@numba.njit(types.boolean(_COLUMN, _SPANS, _COLUMN, _TOKENS, _I, _I), **_compiled)
def _is_prompt(users: Any, spans: Any, base: Any, tokens: Any, length: int, handle: int) -> bool:
    """Whether a prompt that is in use holds what stands first among these tokens."""
    if handle < 0 or users[handle] <= 0 or spans[2, handle] != length:
        return False
    return bool(same_bytes(np.int64(tokens.ctypes.data), base[spans[0, handle]] + 4 * spans[1, handle], 4 * length))


@numba.njit(
    _SIX(
        *[_APPENDED, _TABLE, _COLUMN, _TOKENS, _LOGPROBS, _MASK],
        *[_SPANS, _OUT, _COLUMN, _COLUMN, _SPANS, _COLUMN, _I, _I, _I, _I, _I],
    ),
    **_compiled,
)
def exchange(
    appended: Any,
    departed: Any,
    handles: Any,
    tokens: Any,
    logprobs: Any,
    mask: Any,
    spans: Any,
    users: Any,
    token_base: Any,
    logprob_base: Any,
    prompt_spans: Any,
    prompt_base: Any,
    first: int,
    slab: int,
    place: int,
    room: int,
    prompt: int,
) -> tuple[int, int, int, int, int, int]:
    """See `Kernels.exchange`; `appended`: what `append` is given.

    Returns -1 and nothing is done, or the first live row, slabs left, prompts nobody uses, rows placed, their items,
    rows that use `prompt` now.
    """
    start, places, integers = appended[0], appended[1], appended[3]
    prompt_length, offsets, leaving, n = appended[8], appended[22], departed.shape[1], len(appended[8])
    about, kinds = (offsets, prompt_length, *appended[11:17], appended[24]), np.empty(n, np.int8)
    if inspect(mask, logprobs.view(np.int32), *about, kinds) != 0:  # type: ignore[call-arg]
        return -1, 0, 0, 0, 0, 0
    if not _one_group(appended[10], offsets, prompt_length, tokens):
        return -1, 0, 0, 0, 0, 0
    append(*appended)
    first, unused = _leave(departed, *appended[2:8], places, users, first)  # type: ignore[call-arg]
    runs = _release(spans, departed[2], departed[4:]) if leaving > 0 else 0
    if runs < 0:
        return first, -1, unused, -1, 0, 0
    for run in range(runs):
        if departed[4, run] == slab:  # it may begin anew
            room = -1
    of_tokens, of_logprobs = np.int64(tokens.ctypes.data), np.int64(logprobs.ctypes.data)
    shared = n if _is_prompt(users, prompt_spans, prompt_base, tokens, prompt_length[0], prompt) else 0
    placed = items = 0
    for i in range(n):
        h = departed[2, i] if leaving > 0 else handles[i]
        begin = offsets[i] + prompt_length[i]
        count = offsets[i + 1] - begin
        if placed == i and items + count <= room:
            spans[0, h], spans[1, h], spans[2, h] = slab, place + items, count
            memcpy(token_base[slab] + 4 * (place + items), of_tokens + 4 * begin, 4 * count)
            memcpy(logprob_base[slab] + 4 * (place + items), of_logprobs + 4 * begin, 4 * count)
            placed, items = i + 1, items + count
        integers[places[23], start + i] = h
        if shared > 0:
            integers[places[24], start + i] = prompt
    if shared > 0:
        users[prompt] += n
    return first, runs, unused, placed, items, shared
