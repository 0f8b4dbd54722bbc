"""Token rows and numbers read where Python keeps them, without a call for each. Importing this module needs numba.

What is read is what every extension module reads that was built for this interpreter and for numpy: an object's type,
the items of a list or tuple, the fields of an array, the value of a float. Whatever looks unusual is left to others.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ostinato.buffer.compiled import LINE, prefetch
from ostinato.buffer.kernels import address
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS

HEAD = object.__basicsize__
"""Where what an object holds begins, behind its type."""

DATA, DIMENSIONS, SHAPE, STRIDES, DTYPE = (HEAD + at for at in (0, 8, 16, 24, 40))
"""Fields of an array."""

KINDS = (np.int64, np.int32, np.float64, np.float32, np.bool_)
LONG, INT, DOUBLE, FLOAT, FLAG = range(len(KINDS))
SIZES = np.array([np.dtype(kind).itemsize for kind in KINDS])
KIND_OF = {name: KINDS.index(dtype) for name, dtype in ROW_COLUMNS.items() if dtype in KINDS}
"""What the row columns hold that `read` can write, by name."""

TOKEN_SIZES = np.array([np.dtype(dtype).itemsize for dtype in TOKEN_COLUMNS.values()])

_TYPES = (np.ndarray, list, tuple, int, bool, float, np.int64, np.float64)
_CONSTANTS = (True, np.True_, False, np.False_)
ARRAY, LIST, TUPLE, WHOLE, TRUTH, REAL, NUMPY_WHOLE, NUMPY_REAL, TRUE, NUMPY_TRUE, FALSE, NUMPY_FALSE = range(12)
INSIDE, DTYPES = 12, 13

_I = types.int64
_COLUMN = types.Array(_I, 1, "A", readonly=True)
_TABLE, _OUT = types.Array(_I, 2, "C"), types.Array(_I, 1, "C")
_compiled: Any = {"cache": True}  # with the interpreter lock, since lists may change without it
_inner: Any = {**_compiled, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # only called from compiled code
_intrinsic: Any = intrinsic  # these have no types
_build: Any = cgutils
farray: Any = numba.farray  # type: ignore[attr-defined]
_lazy: Any = numba.njit(**_inner)  # for dtypes as they come
carray: Any = numba.carray  # type: ignore[attr-defined]


@_intrinsic  # type: ignore[untyped-decorator]
def pointer(typing: Any, at: Any) -> Any:
    """An address as what `numba.carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _whole_number(typing: Any, at: Any) -> Any:
    """The value of the int at an address, and 0, or anything else where it has more than 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, long, number = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(long, [byte, number.as_pointer()])
        function = _build.get_or_insert_function(builder.module, kind, "PyLong_AsLongLongAndOverflow")
        beyond = _build.alloca_once(builder, number)
        value = builder.call(function, [builder.inttoptr(arguments[0], byte), beyond])
        return context.make_tuple(builder, signature.return_type, [value, builder.sext(builder.load(beyond), long)])

    return types.UniTuple(types.int64, 2)(types.int64), generate  # type: ignore[no-untyped-call]


@numba.njit(_I(_I), **_inner)
def _word(at: int) -> int:
    """The 8 bytes at an address."""
    return carray(pointer(at), 1, np.int64)[0]  # type: ignore[no-any-return]


@_lazy  # type: ignore[untyped-decorator]
def row_at(arrays: int, which: int, dtype: Any) -> Any:
    """An array of one dimension, in one piece, out of a row of arrays that begins at an address; nothing is checked."""
    at = _word(arrays + 8 * which)
    return carray(pointer(_word(at + DATA)), _word(_word(at + SHAPE)), dtype)


@_lazy  # type: ignore[untyped-decorator]
def table_at(arrays: int, which: int, dtype: Any) -> Any:
    """The same of two dimensions, C order."""
    at = _word(arrays + 8 * which)
    shape = _word(at + SHAPE)
    return carray(pointer(_word(at + DATA)), (_word(shape), _word(shape + 8)), dtype)


@_lazy  # type: ignore[untyped-decorator]
def stack_at(arrays: int, which: int, dtype: Any) -> Any:
    """The same in Fortran order."""
    at = _word(arrays + 8 * which)
    shape = _word(at + SHAPE)
    return farray(pointer(_word(at + DATA)), (_word(shape), _word(shape + 8)), dtype)


@numba.njit(_I(_COLUMN, _I, _I), **_inner)
def _items(known: Any, of: int, n: int) -> int:
    """Where the items of a list or tuple of n stand, 0: it is something else."""
    kind = _word(of + HEAD - 8)
    if (kind != known[LIST] and kind != known[TUPLE]) or _word(of + HEAD) != n:
        return 0
    return of + known[INSIDE] if kind == known[TUPLE] else _word(of + HEAD + 8)


@numba.njit(_I(_COLUMN, _I, _I, _I), **_inner)
def _row_length(known: Any, row: int, dtype: int, size: int) -> int:
    """Items of an array of one dimension, in one piece and of this dtype, -1: it is something else."""
    if _word(row + HEAD - 8) != known[ARRAY] or _word(row + DIMENSIONS) & 0xFFFFFFFF != 1:
        return -1
    length = _word(_word(row + SHAPE))
    if _word(_word(row + DTYPE) + HEAD + 8) != dtype or (length > 1 and _word(_word(row + STRIDES)) != size):
        return -1
    return length if _word(row + DATA) % size == 0 else -1


@numba.njit(types.boolean(_COLUMN, _I, _I, _I), **_inner)
def _write(known: Any, value: int, kind: int, to: int) -> bool:
    """Write a number, given by the address of its object, as one of `KINDS`; False: it may be none or does not fit."""
    if kind == FLAG:
        if (
            value != known[TRUE]
            and value != known[NUMPY_TRUE]
            and value != known[FALSE]
            and value != known[NUMPY_FALSE]
        ):
            return False
        carray(pointer(to), 1, np.bool_)[0] = value == known[TRUE] or value == known[NUMPY_TRUE]
        return True
    given, whole, beyond = _word(value + HEAD - 8), 0, 0
    if given == known[REAL] or given == known[NUMPY_REAL]:
        real = carray(pointer(value + HEAD), 1, np.float64)[0]
        if kind == DOUBLE:
            carray(pointer(to), 1, np.float64)[0] = real
        if kind == FLOAT and abs(real) < 1e38:
            carray(pointer(to), 1, np.float32)[0] = real
        return kind == DOUBLE or (kind == FLOAT and abs(real) < 1e38)
    if given == known[NUMPY_WHOLE]:
        whole = _word(value + HEAD)
    elif given == known[WHOLE] or given == known[TRUTH]:
        whole, beyond = _whole_number(value)
    else:
        return False
    if beyond != 0 or (kind != LONG and kind != DOUBLE and not -(1 << 31) <= whole < 1 << 31):
        return False
    if kind == LONG:
        carray(pointer(to), 1, np.int64)[0] = whole
    elif kind == INT:
        carray(pointer(to), 1, np.int32)[0] = whole
    elif kind == DOUBLE:
        carray(pointer(to), 1, np.float64)[0] = whole
    else:
        carray(pointer(to), 1, np.float32)[0] = whole
    return True


@numba.njit(types.void(_COLUMN, _I, _I, _I), **_inner)
def _fetch(known: Any, inside: int, n: int, count: int) -> None:
    """Have what `read` looks at fetched, many at once: one after the other it would wait for memory each."""
    for k in range(count):
        items = _items(known, _word(inside + 8 * k), n)
        for i in range(n if items != 0 else 0):
            prefetch(_word(items + 8 * i) + HEAD)
    for c in range(3):
        items = _items(known, _word(inside + 8 * c), n)
        for i in range(n if items != 0 else 0):
            row = _word(items + 8 * i)
            if _word(row + HEAD - 8) == known[ARRAY]:
                prefetch(_word(row + SHAPE))


@numba.njit(types.boolean(_COLUMN, _I, types.boolean, _COLUMN, _COLUMN, _TABLE, _OUT), **_compiled)
def read(known: Any, given: int, alone: bool, kinds: Any, targets: Any, rows: Any, offsets: Any) -> bool:
    """Read a tuple, given by its address: three lists of token rows, and a value or a list of values a row column.

    `alone`: values only. `rows` (3, n) and `offsets` become where the rows stand and how long they are; numbers are
    written to the addresses `targets`, as `kinds`. False: something is unusual, and what is written means nothing.
    """
    n, inside = rows.shape[1], given + known[INSIDE]
    _fetch(known, inside, n, 3 + len(kinds))
    for c in range(3):
        items = _items(known, _word(inside + 8 * c), n)
        if items == 0:
            return False
        for i in range(n):
            row = _word(items + 8 * i)
            length = _row_length(known, row, known[DTYPES + c], TOKEN_SIZES[c])
            if c == 0:
                offsets[i + 1] = offsets[i] + length
            if length < 0 or length != offsets[i + 1] - offsets[i]:
                return False
            rows[c, i] = _word(row + DATA)
            prefetch(rows[c, i])
            prefetch(rows[c, i] + LINE)
    for k in range(len(kinds)):
        value, items = _word(inside + 8 * (3 + k)), 0
        kind = _word(value + HEAD - 8)
        if kind == known[LIST] or kind == known[TUPLE]:
            items = 0 if alone else _items(known, value, n)
            if items == 0:
                return False
        for i in range(n):
            if items != 0:
                value = _word(items + 8 * i)
            if not _write(known, value, kinds[k], targets[k] + i * SIZES[kinds[k]]):
                return False
    return True


def _inside(thing: Any, at: int, kind: Any = ctypes.c_int64) -> Any:
    """What stands in an object."""
    return kind.from_address(id(thing) + at).value


def _known() -> Any:
    """What `read` is told about this interpreter; nothing where objects are not what it expects."""
    array, real, whole = np.arange(6, dtype=np.int32)[::2], np.float64(0.1), np.int64(1 << 40)
    fields = {HEAD - 8: id(np.ndarray), DATA: address(array), DTYPE: id(array.dtype)}
    fits = [_inside(array, at) == value for at, value in fields.items()]
    fits += [_inside(array, DIMENSIONS) & 0xFFFFFFFF == 1, _inside(whole, HEAD) == whole]
    for at, value in {SHAPE: 3, STRIDES: 8}.items():
        fits.append(fits[0] and ctypes.c_int64.from_address(_inside(array, at)).value == value)
    pair, pairs = (array, real), [array, real]
    fits += [_inside(pair, HEAD) == 2 == _inside(pairs, HEAD), _inside(pair, tuple.__basicsize__ + 8) == id(real)]
    fits.append(ctypes.c_int64.from_address(_inside(pairs, HEAD + 8) + 8).value == id(real))
    fits += [_inside(number, HEAD, ctypes.c_double) == number for number in (0.1, real)]
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or not all(fits):
        return None
    letters = [_inside(np.dtype(dtype), HEAD + 8) for dtype in TOKEN_COLUMNS.values()]  # of kind, type and byte order
    return np.array([*map(id, (*_TYPES, *_CONSTANTS)), tuple.__basicsize__, *letters], np.int64)


KNOWN = _known()
