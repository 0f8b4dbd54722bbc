"""The compiled kernels. Importing this module needs numba; `kernels` decides whether to.

Everything is compiled for one signature, cached on disk, and runs without the interpreter lock. Blocks are given by
their addresses; positions and lengths count items.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ostinato.buffer.tally import CORRECT, INFORMATIVE, NEW, REPEATS, SINCE, STALENESS

AHEAD, LINE = 2, 64
"""Spans fetched ahead of the one being copied, and bytes of a cache line."""

WORTH_FETCHING, MOST_FETCHED = 1024, 2048
"""Bytes of a mean span from which on fetching ahead pays, and bytes of a span fetched."""


IN_THIS_DRAW = -2
"""Stands for the step of the last use while a draw is counted."""


@intrinsic
def _memcpy(typing: Any, target: Any, source: Any, count: Any) -> Any:
    """memcpy between two addresses: libc's, which knows the machine's best instructions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, of, n = arguments
        pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(to, pointer), builder.inttoptr(of, pointer), n, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _memzero(typing: Any, target: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, n = arguments
        cgutils.memset(builder, builder.inttoptr(to, ir.IntType(8).as_pointer()), n, 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _prefetch(typing: Any, address: Any) -> Any:
    """Have the cache line at an address fetched; harmless whatever the address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_TABLE = types.Array(_I, 2, "C")
_SPANS = types.Array(_I, 2, "C")
_compiled: Any = {"nogil": True, "cache": True}


@numba.njit(types.void(*[_COLUMN] * 7, _I), **_compiled)
def copy_spans(
    to_base: Any, to_block: Any, to_start: Any, of_base: Any, of_block: Any, of_start: Any, lengths: Any, item: int
) -> None:
    """Copy spans from blocks to blocks."""
    for i in range(len(lengths)):
        to = to_base[to_block[i]] + to_start[i] * item
        _memcpy(to, of_base[of_block[i]] + of_start[i] * item, lengths[i] * item)


@numba.njit(types.void(_COLUMN, _COLUMN, _COLUMN, _I, _COLUMN, _COLUMN, _I), **_compiled)
def put(base: Any, block: Any, place: Any, source: int, starts: Any, lengths: Any, item: int) -> None:
    """Copy spans from one address to blocks."""
    for i in range(len(lengths)):
        _memcpy(base[block[i]] + place[i] * item, source + starts[i] * item, lengths[i] * item)


@numba.njit(types.void(_I, _COLUMN, _COLUMN, _SPANS, _COLUMN, _I, _I, _I), **_compiled)
def get(target: int, starts: Any, base: Any, spans: Any, handles: Any, item: int, first: int, last: int) -> None:
    """Copy spans `first` to `last` - 1, by handle, from blocks to one address."""
    for i in range(first, last):
        h = handles[i]
        _memcpy(target + starts[i] * item, base[spans[0, h]] + spans[1, h] * item, spans[2, h] * item)


@numba.njit(types.void(_I, _I, _I, _COLUMN, _COLUMN, _SPANS, *[_COLUMN] * 4, _SPANS, _COLUMN, _I, _I), **_compiled)
def get_tokens(
    tokens: int,
    mask: int,
    logprobs: int,
    starts: Any,
    handles: Any,
    spans: Any,
    token_base: Any,
    mask_base: Any,
    logprob_base: Any,
    prompt_handles: Any,
    prompt_spans: Any,
    prompt_base: Any,
    first: int,
    last: int,
) -> None:
    """Copy rollouts `first` to `last` - 1: the prompt, whose mask and log-probs are 0, and what follows it."""
    total = 0
    for i in range(first, last):
        total += spans[2, handles[i]]
    far = total * 4 > WORTH_FETCHING * (last - first)
    for i in range(first, last):
        if far and i + AHEAD < last:
            h = handles[i + AHEAD]
            block, place, count = spans[0, h], spans[1, h], spans[2, h]
            for at in range(0, min(4 * count, MOST_FETCHED), LINE):
                _prefetch(token_base[block] + 4 * place + at)
                _prefetch(logprob_base[block] + 4 * place + at)
            for at in range(0, min(count, MOST_FETCHED), LINE):
                _prefetch(mask_base[block] + place + at)
        p, h, to = prompt_handles[i], handles[i], starts[i]
        prompt = prompt_spans[2, p]
        _memcpy(tokens + 4 * to, prompt_base[prompt_spans[0, p]] + 4 * prompt_spans[1, p], 4 * prompt)
        _memzero(mask + to, prompt)
        _memzero(logprobs + 4 * to, 4 * prompt)
        to += prompt
        block, place, count = spans[0, h], spans[1, h], spans[2, h]
        _memcpy(tokens + 4 * to, token_base[block] + 4 * place, 4 * count)
        _memcpy(mask + to, mask_base[block] + place, count)
        _memcpy(logprobs + 4 * to, logprob_base[block] + 4 * place, 4 * count)


@numba.njit(
    types.void(
        _COLUMN,
        _TABLE,
        types.Array(types.float64, 2, "C"),
        types.Array(types.int32, 2, "C"),
        _COLUMN,
        _I,
        types.float64,
        _TABLE,
        types.Array(types.float64, 1, "C"),
        types.Array(_I, 1, "C"),
    ),
    **_compiled,
)
def count_draw(
    rows: Any,
    integers: Any,
    numbers: Any,
    counts: Any,
    places: Any,
    train_step: int,
    correct_above: float,
    before: Any,
    sums: Any,
    by_source: Any,
) -> None:
    """See `Kernels.count_draw`; `places`: where its six columns stand in their blocks."""
    uses, last_use, version, reward, deviation, source = places
    for i in range(len(rows)):
        r = rows[i]
        before[0, i] = integers[uses, r]
        integers[uses, r] += 1
        last = integers[last_use, r]
        if last == IN_THIS_DRAW:
            before[1, i] = 0
            sums[REPEATS] += 1
        elif last < 0:
            before[1, i] = -1
            sums[NEW] += 1
        else:
            before[1, i] = train_step - last
            sums[SINCE] += train_step - last
        integers[last_use, r] = IN_THIS_DRAW
        sums[STALENESS] += train_step - integers[version, r]
        sums[CORRECT] += numbers[reward, r] > correct_above
        sums[INFORMATIVE] += numbers[deviation, r] > 0
        by_source[counts[source, r]] += 1
    for i in range(len(rows)):
        integers[last_use, rows[i]] = train_step


@numba.njit(
    types.boolean(
        types.Array(types.boolean, 1, "A", readonly=True),
        types.Array(types.float32, 1, "A", readonly=True),
        _COLUMN,
        types.Array(types.int32, 1, "A", readonly=True),
        types.Array(types.boolean, 1, "C"),
    ),
    **_compiled,
)
def dirty_prompts(mask: Any, logprobs: Any, offsets: Any, prompt_length: Any, dirty: Any) -> bool:
    """Set `dirty` where a prompt has a true mask or log-probs other than 0; returns whether any has."""
    found = False
    for i in range(len(prompt_length)):
        for at in range(offsets[i], offsets[i] + prompt_length[i]):
            if mask[at] or logprobs[at] != 0:
                dirty[i] = found = True
                break
    return found


@numba.njit(types.boolean(types.Array(types.uint8, 1, "A", readonly=True), _COLUMN, _COLUMN, _I), **_compiled)
def all_equal(values: Any, starts: Any, lengths: Any, item: int) -> bool:
    """Whether all spans hold the same bytes."""
    for i in range(1, len(starts)):
        if lengths[i] != lengths[0]:
            return False
    for i in range(1, len(starts)):
        shift = (starts[i] - starts[0]) * item
        for at in range(starts[0] * item, (starts[0] + lengths[0]) * item):
            if values[at] != values[at + shift]:
                return False
    return True
