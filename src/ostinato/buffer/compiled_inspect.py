"""What comes in is looked at before it is stored. Importing this module needs numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

from ostinato.buffer.compiled import has_byte
from ostinato.buffer.compiled_given import carray, pointer
from ostinato.buffer.tally import MASKED, PLAIN, WHOLE

EXPONENT = np.int32(0x7F800000)
"""Bits of a float32 that are all set when it is not finite."""

TOKENS, MASK, LOGPROBS = range(3)
"""Lines of a table of addresses of token rows."""

_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_TABLE = types.Array(_I, 2, "C")
_MASK, _BITS = (types.Array(dtype, 1, "C", readonly=True) for dtype in (types.boolean, types.int32))
_COUNTS = types.Array(types.int32, 1, "A", readonly=True)
_NUMBERS = types.Array(types.float64, 1, "A", readonly=True)
_KINDS = types.Array(types.int8, 1, "C")
_ABOUT: Any = types.Tuple([_COLUMN, _COUNTS, *[_NUMBERS] * 4, _COLUMN, _COLUMN, _I, _KINDS])  # type: ignore[no-untyped-call]
_compiled: Any = {"nogil": True, "cache": True}
_inner: Any = {**_compiled, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # only called from compiled code


@numba.njit(_TABLE(_I, _I, _I, _COLUMN, _I), **_inner)
def located(tokens: int, mask: int, logprobs: int, offsets: Any, total: int) -> Any:
    """Addresses of the rows of packed token columns that begin at these: (3, n), with no line when offsets do not fit.

    `total`: their items. Whoever made the offsets may have changed them since.
    """
    n = len(offsets) - 1
    if offsets[0] != 0 or offsets[n] != total:
        return np.empty((0, n), np.int64)
    rows = np.empty((3, n), np.int64)
    for i in range(n):
        if not 0 <= offsets[i] <= offsets[i + 1] <= total:
            return np.empty((0, n), np.int64)
        rows[TOKENS, i], rows[MASK, i] = tokens + 4 * offsets[i], mask + offsets[i]
        rows[LOGPROBS, i] = logprobs + 4 * offsets[i]
    return rows


@numba.njit(types.boolean(*[types.float64] * 4), **_inner)
def _finite(a: float, b: float, c: float, d: float) -> bool:
    """Whether all are finite numbers; a finite sum says so at once, but a sum may overflow."""
    total = a + b + c + d
    return bool(np.isfinite(total) or (np.isfinite(a) and np.isfinite(b) and np.isfinite(c) and np.isfinite(d)))


@numba.njit(_I(_I, _I, _I, _I), **_inner)
def _kind(logprobs: int, mask: int, prompt: int, length: int) -> int:
    """How a row is to be stored, -1: a log-prob is not finite."""
    bits = carray(pointer(logprobs), length, np.int32)
    heard, greatest_exponent = np.int32(0), np.int32(0)
    before, rest = bits[:prompt], bits[prompt:]
    for at in range(len(before)):
        heard |= before[at]
        greatest_exponent = max(greatest_exponent, before[at] & EXPONENT)
    for at in range(len(rest)):
        greatest_exponent = max(greatest_exponent, rest[at] & EXPONENT)
    if greatest_exponent == EXPONENT:
        return -1
    if heard != 0 or has_byte(mask, prompt, 1):
        return WHOLE
    return MASKED if has_byte(mask + prompt, length - prompt, 0) else PLAIN


@numba.njit(_I(_TABLE, _ABOUT), **_inner)
def inspect_rows(rows: Any, about: Any) -> int:
    """`inspect` of token rows at addresses, see `located`."""
    offsets, prompt_length, reward, mean, deviation, advantage, oldest, newest, train_step, kinds = about
    greatest = 0
    if len(rows) == 0:
        return -1
    for i in range(len(prompt_length)):
        wrong = newest[i] > train_step or newest[i] < oldest[i]
        if wrong or not _finite(reward[i], mean[i], deviation[i], advantage[i]):
            return -1
        prompt, length = prompt_length[i], offsets[i + 1] - offsets[i]
        if prompt < 0 or prompt > length:
            return -1
        kinds[i] = kind = _kind(rows[LOGPROBS, i], rows[MASK, i], prompt, length)
        if kind < 0:
            return -1
        greatest = max(greatest, kind)
    return greatest


@numba.njit(_I(_MASK, _BITS, _ABOUT), **_compiled)
def inspect(mask: Any, bits: Any, about: Any) -> int:
    """See `Kernels.inspect`; `bits` are those of the log-probs. Returns the greatest kind, -1: something is wrong.

    `about`: offsets, prompt lengths, the four `FINITE_ROWS`, oldest and newest versions, the train step, and memory
    for the kinds.
    """
    columns: Any = (0, np.int64(mask.ctypes.data), np.int64(bits.ctypes.data))
    return inspect_rows(located(*columns, about[0], len(bits)), about)  # type: ignore[call-arg]
