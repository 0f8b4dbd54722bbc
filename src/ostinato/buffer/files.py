"""A buffer in one file, written and read piece by piece: see `snapshot` for the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.arena import Arena
from ostinato.buffer.blobs import COLUMN, Blobs
from ostinato.buffer.draws import check_generator
from ostinato.buffer.payload import MASK, Payload, handle_name
from ostinato.buffer.snapshot import Chunks, SnapshotFile, dtype_of, dtype_text, save_arrays
from ostinato.buffer.state import install, read_state, small_arrays
from ostinato.buffer.tally import ROWS
from ostinato.errors import CheckpointError, DataError
from ostinato.ragged import offsets_of

if TYPE_CHECKING:
    from ostinato.buffer.keeper import Keeper

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
    for name, blobs, handles in _shared(payload, row):
        used, index = np.unique(handles, return_inverse=True)
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
            small = {name: file.read(name) for name in file.sections if name.split(".")[0] in SMALL}
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
    handles["payload"], tokens = payload.tokens.reserve(file.read("tokens.lengths"))
    handles["mask"] = np.full(len(handles["payload"]), -1)
    handles["mask"][file.read("masks.rows")], masks = payload.masks.reserve(file.read("masks.lengths"))
    memory = {f"tokens.{name}": arrays for name, arrays in tokens.items()} | {"masks.values": masks[MASK]}
    parts = {name: blobs for name, blobs, _ in _shared(payload, None)}
    for name, blobs in parts.items():
        lengths, index = file.read(f"{name}.lengths"), file.read(f"{name}.index")
        handles[name], memory[f"{name}.values"] = blobs.reserve(lengths, index)
    file.read_all(memory)
    for name, blobs in parts.items():
        blobs.register(handles[name])
    return payload, handles


def _shared(payload: Payload, row: Mapping[str, NDArray[Any]] | None) -> Iterator[tuple[str, Blobs, NDArray[np.int64]]]:
    """What rows share: the table's column of handles, the values, the handles."""
    parts = {"prompt": payload.prompts} | {handle_name(name): blobs for name, blobs in payload.extras.items()}
    for name, blobs in parts.items():
        yield name, blobs, np.empty(0, np.int64) if row is None else row[name]


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
