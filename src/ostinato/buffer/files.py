"""A buffer in one file, written and read piece by piece: see `snapshot` for the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.arena import Arena
from ostinato.buffer.blobs import COLUMN
from ostinato.buffer.draws import check_generator
from ostinato.buffer.payload import MASK, Payload, handle_name
from ostinato.buffer.snapshot import Chunks, SnapshotFile, dtype_of, dtype_text, save_arrays
from ostinato.buffer.state import install, read_state, small_arrays
from ostinato.buffer.table import Table
from ostinato.buffer.tally import FINITE_ROWS, ROWS
from ostinato.buffer.texts import are_texts
from ostinato.errors import CheckpointError, DataError
from ostinato.ragged import described, offsets_of

if TYPE_CHECKING:
    from ostinato.buffer.keeper import Keeper

Int = NDArray[np.int64]

KIND = "ostinato replay buffer"
FORMAT = 1
PIECE_BYTES = 1 << 22
TABLE_COLUMNS = (*ROWS, "source_code", "length")


def save_buffer(buffer: Keeper, path: str | Path, generators: Mapping[str, np.random.Generator]) -> int:
    """Write everything; returns the bytes of the file."""
    for name, rng in generators.items():
        _check_saveable(name, rng)
    contents = buffer._contents
    contents.compact(exact=True)  # as it will be loaded: both go on alike, to the last bit
    table, payload = contents.table, contents.payload
    row = table.gather(table.live())
    arrays: dict[str, NDArray[Any] | Chunks] = dict(small_arrays(buffer))
    arrays |= {f"rows.{name}": row[name] for name in TABLE_COLUMNS}
    arrays["tokens.lengths"] = payload.tokens.lengths(row["payload"])
    for name in payload.tokens.blocks:
        arrays[f"tokens.{name}"] = _column(payload.tokens, name, row["payload"])
    masked = np.flatnonzero(row["mask"] >= 0)
    arrays |= {"masks.rows": masked, "masks.lengths": payload.masks.lengths(row["mask"][masked])}
    arrays["masks.values"] = _column(payload.masks, MASK, row["mask"][masked])
    for name, blobs in payload.shared_parts.items():
        used, index = np.unique(row[name], return_inverse=True)
        arrays |= {f"{name}.lengths": blobs.arena.lengths(used), f"{name}.index": index.reshape(-1)}
        arrays[f"{name}.values"] = _column(blobs.arena, COLUMN, used)
    header = {
        "kind": KIND,
        "format": FORMAT,
        "extras": {
            name: [payload.layouts[name], dtype_text(name, dtype), *shape]
            for name, (dtype, shape) in payload.kinds.items()
        },
        "generators": {name: _plain(rng.bit_generator.state) for name, rng in generators.items()},
    }
    return save_arrays(path, header, arrays)


def load_buffer(buffer: Keeper, path: str | Path) -> dict[str, np.random.Generator]:
    """Fill a buffer from a file; returns the generators saved with it. Raises `CheckpointError`, changing nothing."""
    with SnapshotFile(path) as file:
        if file.header.get("kind") != KIND or file.header.get("format") != FORMAT:
            what = f"{file.header.get('kind')!r} of format {file.header.get('format')}"
            raise CheckpointError(f"{path} holds {what}, expected {KIND!r} of format {FORMAT}")
        try:
            payload, handles = _payload(file, buffer)
            columns = {name: file.read(f"rows.{name}") for name in TABLE_COLUMNS} | handles
            _check_columns(columns)
            small = {name: file.read(name) for name in file.sections if name.split(".")[0] in SMALL}
            _check_rows(columns, payload, len(small["sources"]))
            saved = read_state(small, payload, columns, small["sources"].tolist(), buffer=buffer)
            generators = {name: _generator(state) for name, state in file.header["generators"].items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a whole buffer: {error}") from error
    install(buffer, saved)
    return generators


SMALL = {"counters", "sources", "limiter", "statistics", "book", "part"}


def _payload(file: SnapshotFile, buffer: Keeper) -> tuple[Payload, dict[str, NDArray[Any]]]:
    kernels = buffer._contents.kernels
    extras = file.header["extras"]
    samples = {name: np.empty((0, *shape), dtype_of(dtype)) for name, (_, dtype, *shape) in extras.items()}
    payload = Payload({name: layout for name, (layout, *_) in extras.items()}, samples, kernels)
    handles: dict[str, NDArray[Any]] = {}
    handles["payload"], tokens = payload.tokens.reserve(_lengths(file, "tokens", "tokens"))
    n = len(handles["payload"])
    handles["mask"] = np.full(n, -1)
    masked = _numbers(file, "masks.rows", below=n)
    handles["mask"][masked], masks = payload.masks.reserve(_lengths(file, "masks"))
    if np.any(np.diff(masked) <= 0):
        raise DataError("masks.rows do not rise")
    memory = {f"tokens.{name}": arrays for name, arrays in tokens.items()} | {"masks.values": masks[MASK]}
    parts = payload.shared_parts
    for name, blobs in parts.items():
        lengths = _lengths(file, name)
        index = _numbers(file, f"{name}.index", below=len(lengths))
        if len(index) != n:
            raise DataError(f"{name}.index has {len(index)} rows, expected {n}")
        handles[name], memory[f"{name}.values"] = blobs.reserve(lengths, index)
    file.read_all(memory)
    for name, blobs in parts.items():
        blobs.register(handles[name])
    return payload, handles


def _numbers(file: SnapshotFile, name: str, below: int) -> Int:
    """An array of numbers from 0 up and below a bound, int64 (k,). Raises `DataError`: memory is addressed by them."""
    numbers = file.read(name)
    if numbers.dtype != np.int64 or numbers.ndim != 1:
        raise DataError(f"{name} is {described(numbers)}, expected int64 (k,)")
    if numbers.min(initial=0) < 0 or numbers.max(initial=-1) >= below:
        raise DataError(f"{name} runs from {numbers.min()} to {numbers.max()}, expected 0 to {below - 1}")
    return numbers


def _lengths(file: SnapshotFile, part: str, values: str = "values") -> Int:
    """Lengths of the rows of a part, which together are as long as its values."""
    total = file.sections[f"{part}.{values}"].shape[0]
    lengths = _numbers(file, f"{part}.lengths", below=total + 1)
    if lengths.sum() != total:
        raise DataError(f"{part}.lengths add up to {lengths.sum()}, expected {total}")
    return lengths


def _check_columns(columns: Mapping[str, NDArray[Any]]) -> None:
    """Raise `DataError` unless the columns are such as the table holds, a number a row."""
    table, n = Table(), len(columns["payload"])
    for name in TABLE_COLUMNS:
        dtype = table[name].dtype
        if columns[name].dtype != dtype or columns[name].shape != (n,):
            raise DataError(f"rows.{name} is {described(columns[name])}, expected {dtype} ({n},)")


def _check_rows(columns: Mapping[str, NDArray[Any]], payload: Payload, n_sources: int) -> None:
    """Raise `DataError` where a row contradicts its payload: a draw copies as much as that says."""
    length, width, mask, source = (columns[name] for name in ("length", "prompt_length", "mask", "source_code"))
    behind, prompt = payload.tokens.lengths(columns["payload"]), payload.prompt_spans.lengths(columns["prompt"])
    own = mask >= 0
    wrong = (behind + prompt != length) | (width < 0) | (width > length) | (source < 0) | (source >= n_sources)
    wrong |= (prompt != width) & ((prompt > 0) | ~own)  # a prompt inside of what follows it has a mask
    wrong[own] |= payload.masks.lengths(mask[own]) != behind[own]
    for name in FINITE_ROWS:
        wrong |= ~np.isfinite(columns[name])
    for name, blobs in payload.extras.items():
        if not payload.layouts[name].startswith("ragged") and not are_texts(*payload.kinds[name]):
            wrong |= blobs.arena.lengths(columns[handle_name(name)]) != 1
    if wrong.any():
        raise DataError(f"row {wrong.argmax()} contradicts its payload, or holds a number that is not finite")


def _column(arena: Arena, name: str, handles: NDArray[np.int64]) -> Chunks:
    dtype, shape = arena.column(name)
    return Chunks(dtype, shape, _pieces(arena, name, handles))


def _pieces(arena: Arena, name: str, handles: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """The values of spans one after the other, in pieces of a few MiB that lie in the same memory."""
    dtype, shape = arena.column(name)
    offsets = offsets_of(arena.lengths(handles))
    aim = max(1, PIECE_BYTES // max(1, dtype.itemsize * int(np.prod(shape, dtype=np.int64))))
    memory = np.empty((0, *shape), dtype)
    first = 0
    while first < len(handles):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + aim, "right")) - 1)
        total = int(offsets[last] - offsets[first])
        if total > len(memory):
            memory = np.empty((max(total, aim), *shape), dtype)
        piece = memory[:total]
        arena.copy_out(name, handles[first:last], piece, offsets[first:last] - offsets[first])
        yield piece
        first = last


def _check_saveable(name: str, rng: Any) -> None:
    """Raise `DataError` for a generator that `load` could not make again: another class than numpy's own."""
    check_generator(rng)
    kind = type(rng.bit_generator)
    if getattr(np.random, kind.__name__, None) is not kind:
        raise DataError(f"generator {name!r} is a {kind.__module__}.{kind.__qualname__}, expected one of numpy's")


def _plain(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _generator(state: Mapping[str, Any]) -> np.random.Generator:
    kind = getattr(np.random, str(state["bit_generator"]), None)
    if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
        raise CheckpointError(f"there is no bit generator {state['bit_generator']!r}")
    bits = kind()
    bits.state = dict(state)
    return np.random.Generator(bits)
