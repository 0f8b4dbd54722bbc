"""Compiled copying of spans. Importing this module needs numba; `kernels` decides whether to.

Everything is compiled for one signature, cached on disk, and runs without the interpreter lock. Blocks are given by
their addresses; positions and lengths count items.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

AHEAD, LINE = 3, 64
"""Spans fetched ahead of the one being copied, and bytes of a cache line."""

WORTH_FETCHING, MOST_FETCHED = 1024, 4096
"""Bytes of a mean span from which on fetching ahead pays, and bytes of a span fetched."""

NARROW = 1024
"""Tokens of a padded row up to which it is filled as a whole: in fewer calls, and the cache holds it."""


_intrinsic: Any = intrinsic  # it has no types
_BYTE, _LONG = ir.IntType(8), ir.IntType(64)
_POINTER = _BYTE.as_pointer()


@_intrinsic
def memcpy(typing: Any, target: Any, source: Any, count: Any) -> Any:
    """memcpy between two addresses: libc's, which knows the machine's best instructions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, of, n = arguments
        pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(to, pointer), builder.inttoptr(of, pointer), n, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_intrinsic
def memset(typing: Any, target: Any, count: Any, value: Any) -> Any:
    """memset at an address, to a byte."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, n, byte = arguments
        byte = builder.trunc(byte, ir.IntType(8))
        pointer = ir.IntType(8).as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer, ir.IntType(8), ir.IntType(64), ir.IntType(1)]),
            "llvm.memset.p0.i64",
        )
        builder.call(function, [builder.inttoptr(to, pointer), byte, n, ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Have the cache line at an address fetched; harmless whatever the address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def same_bytes(typing: Any, one: Any, other: Any, count: Any) -> Any:
    """Whether memory at two addresses holds the same bytes: libc's memcmp."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [_POINTER, _POINTER, _LONG])
        function = cgutils.get_or_insert_function(builder.module, kind, "memcmp")
        a, b, n = arguments
        order = builder.call(function, [builder.inttoptr(a, _POINTER), builder.inttoptr(b, _POINTER), n])
        return builder.icmp_signed("==", order, order.type(0))

    return types.boolean(types.int64, types.int64, types.int64), generate


@_intrinsic
def has_byte(typing: Any, address: Any, count: Any, value: Any) -> Any:
    """Whether a byte occurs in memory at an address: libc's memchr."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_POINTER, [_POINTER, ir.IntType(32), _LONG])
        function = cgutils.get_or_insert_function(builder.module, kind, "memchr")
        at, n, byte = arguments
        byte = builder.trunc(byte, ir.IntType(32))
        found = builder.call(function, [builder.inttoptr(at, _POINTER), byte, n])
        return builder.icmp_unsigned("!=", builder.ptrtoint(found, _LONG), _LONG(0))

    return types.boolean(types.int64, types.int64, types.int64), generate


_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_TABLE = types.Array(_I, 2, "F")
_TOKENS = [types.Array(dtype, 1, "C") for dtype in (types.int32, types.float32, types.boolean)]
_TOKEN = types.int32
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_compiled: Any = {"nogil": True, "cache": True}


@numba.njit(types.void(*[_COLUMN] * 7, _I), **_compiled)
def copy_spans(
    to_base: Any, to_block: Any, to_start: Any, of_base: Any, of_block: Any, of_start: Any, lengths: Any, item: int
) -> None:
    """Copy spans from blocks to blocks."""
    for i in range(len(lengths)):
        to = to_base[to_block[i]] + to_start[i] * item
        memcpy(to, of_base[of_block[i]] + of_start[i] * item, lengths[i] * item)


@numba.njit(types.void(_COLUMN, _TABLE, _COLUMN, _BYTES, _COLUMN, _I), **_compiled)
def put(base: Any, spans: Any, handles: Any, source: Any, starts: Any, item: int) -> None:
    """Copy spans, by handle, from the bytes of an array to blocks."""
    begin = np.int64(source.ctypes.data)
    for i in range(len(handles)):
        h = handles[i]
        memcpy(base[spans[0, h]] + spans[1, h] * item, begin + starts[i] * item, spans[2, h] * item)


@numba.njit(types.void(_I, _COLUMN, _COLUMN, _TABLE, _COLUMN, _I, _I, _I), **_compiled)
def get(target: int, starts: Any, base: Any, spans: Any, handles: Any, item: int, first: int, last: int) -> None:
    """Copy spans `first` to `last` - 1, by handle, from blocks to one address."""
    for i in range(first, last):
        h = handles[i]
        memcpy(target + starts[i] * item, base[spans[0, h]] + spans[1, h] * item, spans[2, h] * item)


@numba.njit(_I(_TABLE, *[_COLUMN] * 3, _I, _I, _I, _COLUMN, _BYTES, _I, _COLUMN, _BYTES, _I), **_compiled)
def enter(
    spans: Any,
    handles: Any,
    starts: Any,
    lengths: Any,
    slab: int,
    place: int,
    room: int,
    base: Any,
    source: Any,
    item: int,
    second_base: Any,
    second_source: Any,
    second_item: int,
) -> int:
    """See `Kernels.enter`, for two columns, the second one of items of 0 bytes where there is only one."""
    items = 0
    for i in range(len(lengths)):
        items += lengths[i]
    if items > room:
        return -1
    for i in range(len(handles)):
        h = handles[i]
        spans[0, h], spans[1, h], spans[2, h] = slab, place, lengths[i]
        place += lengths[i]
    if items > 0:
        put(base, spans, handles, source, starts, item)
        put(second_base, spans, handles, second_source, starts, second_item)
    return items


@numba.njit(types.UniTuple(_I, 2)(_TABLE, _COLUMN), **_compiled)
def leave(spans: Any, handles: Any) -> tuple[int, int]:
    """Mark spans as free when all stand in one slab: that slab and their items; slab -1: nothing done."""
    total, slab = 0, spans[0, max(0, handles[0])]
    for i in range(len(handles)):
        if handles[i] < 0 or spans[0, handles[i]] != slab:
            return -1, 0
        total += spans[2, handles[i]]
    for i in range(len(handles)):
        spans[0, handles[i]] = -1
    return slab, total


@numba.njit(types.void(_I, _I, _I), **_compiled)
def _fetch(one: int, other: int, items: int) -> None:
    """Have the first of so many items of 4 bytes fetched at two addresses."""
    for at in range(0, min(4 * items, MOST_FETCHED), LINE):
        prefetch(one + at)
        prefetch(other + at)


@numba.njit(types.UniTuple(types.Array(_I, 1, "C"), 2)(_COLUMN, _TABLE, _COLUMN), **_compiled)
def _located(handles: Any, spans: Any, base: Any) -> tuple[Any, Any]:
    """Addresses and lengths of spans of items of 4 bytes."""
    addresses, lengths = np.empty(len(handles), np.int64), np.empty(len(handles), np.int64)
    for i in range(len(handles)):
        h = handles[i]
        addresses[i], lengths[i] = base[spans[0, h]] + 4 * spans[1, h], spans[2, h]
    return addresses, lengths


@numba.njit(
    types.void(
        *_TOKENS, *[_COLUMN] * 2, _TABLE, *[_COLUMN] * 3, _TABLE, *[_COLUMN] * 2, _TABLE, _COLUMN, _I, _TOKEN, _I, _I
    ),
    **_compiled,
)
def get_tokens(
    out_tokens: Any,
    out_logprobs: Any,
    out_mask: Any,
    starts: Any,
    handles: Any,
    spans: Any,
    token_base: Any,
    logprob_base: Any,
    mask_handles: Any,
    mask_spans: Any,
    mask_base: Any,
    prompt_handles: Any,
    prompt_spans: Any,
    prompt_base: Any,
    width: int,
    token: int,
    first: int,
    last: int,
) -> None:
    """Copy rollouts `first` to `last` - 1: the prompt, whose mask and log-probs are 0, and what follows it.

    `width`: each to a row of so many tokens, from `starts` in it on, `token` and 0 beside it; 0: to `starts`.
    """
    tokens, logprobs = np.int64(out_tokens.ctypes.data), np.int64(out_logprobs.ctypes.data)
    mask, n = np.int64(out_mask.ctypes.data), last - first
    of_tokens, counts = _located(handles[first:last], spans, token_base)
    of_logprobs, _ = _located(handles[first:last], spans, logprob_base)
    of_prompts, prompts = _located(prompt_handles[first:last], prompt_spans, prompt_base)
    ahead = AHEAD if counts.sum() * 4 > WORTH_FETCHING * n else n
    for j in range(n):
        if j + ahead < n:
            _fetch(of_tokens[j + ahead], of_logprobs[j + ahead], counts[j + ahead])
            _fetch(of_prompts[j + ahead], of_prompts[j + ahead], prompts[j + ahead])
        i = first + j
        m, begin, count, prompt = mask_handles[i], width * i, counts[j], prompts[j]
        to = begin + starts[i]
        behind, stop = to + prompt, begin + width
        left, right, zeros = to, behind + count, behind  # where it is no longer or again padded, and 0
        if width == 0:
            begin, stop = to, right
        elif width <= NARROW:
            left, right, zeros = stop, stop, stop
        if token:
            out_tokens[begin:left] = token
            out_tokens[right:stop] = token
        else:
            memset(tokens + 4 * begin, 4 * (left - begin), 0)
            memset(tokens + 4 * right, 4 * (stop - right), 0)
        memset(logprobs + 4 * begin, 4 * (zeros - begin), 0)
        memset(logprobs + 4 * right, 4 * (stop - right), 0)
        memset(mask + begin, zeros - begin, 0)
        memset(mask + right, stop - right, 0)
        memcpy(tokens + 4 * to, of_prompts[j], 4 * prompt)
        memcpy(tokens + 4 * behind, of_tokens[j], 4 * count)
        memcpy(logprobs + 4 * behind, of_logprobs[j], 4 * count)
        if m < 0:
            memset(mask + behind, count, 1)
        else:
            memcpy(mask + behind, mask_base[mask_spans[0, m]] + mask_spans[1, m], count)
