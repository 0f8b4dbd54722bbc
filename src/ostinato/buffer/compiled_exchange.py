"""The commonest add in one compiled call: rows come, as many of the oldest leave. Importing this module needs numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

from ostinato.buffer.compiled import memcpy, same_bytes
from ostinato.buffer.compiled_rows import APPENDED, BLOCKS, append

_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_SPANS, _TABLE, _OUT = types.Array(_I, 2, "F"), types.Array(_I, 2, "C"), types.Array(_I, 1, "C")
_TOKENS, _LOGPROBS = (types.Array(dtype, 1, "C", readonly=True) for dtype in (types.int32, types.float32))
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


@numba.njit(_I(_SPANS, _COLUMN, _I), **_compiled)
def _items_in_one_slab(spans: Any, handles: Any, none: int) -> int:
    """Items of spans that stand in one slab, `none` when they stand in several."""
    total = 0
    for i in range(len(handles)):
        if handles[i] < 0 or spans[0, handles[i]] != spans[0, handles[0]]:
            return none
        total += spans[2, handles[i]]
    return total


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


@numba.njit(
    _SIX(_APPENDED, _TABLE, _COLUMN, _TOKENS, _LOGPROBS, _SPANS, _OUT, _COLUMN, _COLUMN, _I, _I, _I, _I, _I),
    **_compiled,
)
def exchange(
    appended: Any,
    departed: Any,
    handles: Any,
    tokens: Any,
    logprobs: Any,
    spans: Any,
    users: Any,
    token_base: Any,
    logprob_base: Any,
    first: int,
    slab: int,
    place: int,
    room: int,
    prompt: int,
) -> tuple[int, int, int, int, int, int]:
    """See `Kernels.exchange`; `appended`: what `append` is given.

    Returns -1 and nothing is done, or the first live row, the slab left, items that left it, prompts nobody uses, items
    that came, rows that use `prompt` now.
    """
    start, places, integers = appended[0], appended[1], appended[3]
    prompt_length, offsets, leaving = appended[8], appended[22], departed.shape[1]
    if not _one_group(appended[10], offsets, prompt_length, tokens):
        return -1, 0, 0, 0, 0, 0
    append(*appended)
    first, unused = _leave(departed, *appended[2:8], places, users, first)  # type: ignore[call-arg]
    left_slab, left_items = -1, 0
    if leaving > 0:
        left_items = _items_in_one_slab(spans, departed[2], -1)
        if left_items < 0:
            return first, -1, 0, unused, -1, 0
        left_slab = spans[0, departed[2, 0]]
        spans[0, departed[2]] = -1
    n = len(prompt_length)
    items = offsets[n] - prompt_length.sum()
    if items > room or left_slab == slab:
        return first, left_slab, left_items, unused, -1, 0
    of_tokens, of_logprobs = np.int64(tokens.ctypes.data), np.int64(logprobs.ctypes.data)
    shared = n if prompt >= 0 and users[prompt] > 0 else 0
    for i in range(n):
        h = departed[2, i] if leaving > 0 else handles[i]
        begin = offsets[i] + prompt_length[i]
        count = offsets[i + 1] - begin
        spans[0, h], spans[1, h], spans[2, h] = slab, place, count
        memcpy(token_base[slab] + 4 * place, of_tokens + 4 * begin, 4 * count)
        memcpy(logprob_base[slab] + 4 * place, of_logprobs + 4 * begin, 4 * count)
        integers[places[23], start + i] = h
        if shared > 0:
            integers[places[24], start + i] = prompt
        place += count
    if shared > 0:
        users[prompt] += n
    return first, left_slab, left_items, unused, items, shared
