"""A buffer as plain arrays, and back."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.contents import BOOK, Contents
from ostinato.buffer.payload import HANDLES, Payload
from ostinato.buffer.repeats import numbered
from ostinato.buffer.sampling.protocol import Indexed, Remembering
from ostinato.buffer.statistics import BufferStatistics
from ostinato.buffer.table import Table
from ostinato.buffer.tally import ROWS
from ostinato.buffer.workspace import FreshMemory
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.ragged import described
from ostinato.rollout_arrays import from_arrays, to_arrays
from ostinato.rollouts import Rollouts

if TYPE_CHECKING:
    from ostinato.buffer.keeper import Keeper

BOOK_TYPES: dict[str, Any] = dict.fromkeys(BOOK, np.int64) | {"group_rows": np.int32, "priority": np.float64}
LEAST = {"rollout_id": 0, "uses": 0, "last_use_step": -1, "group_rows": 1, "priority": 0.0}
"""Book-keeping columns and their smallest values."""

LONGEST_LIST = 64
"""Longer ones hold no parts."""

COUNTERS = ("added", "first_id", "id_stride", "inserted", "sampled", "train_step")


_OWNERS: WeakValueDictionary[int, Contents] = WeakValueDictionary()
"""Whose the parts are that keep something of their own, by `id`; an owner keeps them alive, so none stands for two."""


def claim(owner: Contents, parts: Iterable[object]) -> None:
    """Make parts that keep something of their own, and such inside them, belong to one buffer.

    Raises `ConfigError` when one of them belongs to another buffer that still lives: both would be told wrong things.
    """
    kept: list[object] = [part for part in _with_inner(parts) if isinstance(part, (Indexed, Remembering))]
    for part in kept:
        if id(part) in _OWNERS:
            gc.collect()  # the other one may be waiting for it
        if id(part) in _OWNERS:
            name = type(part).__name__
            raise ConfigError(f"this {name} belongs to another buffer already: give each buffer a {name} of its own")
    owner.claimed = kept
    for part in kept:
        _OWNERS[id(part)] = owner


def _with_inner(parts: Iterable[object], depth: int = 3) -> Iterator[object]:
    """Parts, and what stands in their attributes, alone or in short lists, if it may be a part."""
    for part in parts:
        yield part
        if not depth or isinstance(part, (np.ndarray, str, int, float, type, FunctionType, MethodType)):
            continue
        inner = [*getattr(part, "__dict__", {}).values()]
        inner += [getattr(part, f.name) for f in fields(part)] if is_dataclass(part) else []
        for value in inner:
            values = list(value.values()) if isinstance(value, dict) else value
            listed = isinstance(values, (list, tuple)) and len(values) <= LONGEST_LIST
            yield from _with_inner(values if listed else [value], depth - 1)


@dataclass(frozen=True, slots=True)
class Saved:
    """What was read, checked, and not yet in a buffer: n rows as table columns with handles into `payload`."""

    counters: Sequence[int]
    limiter: str
    statistics: BufferStatistics
    payload: Payload
    columns: Mapping[str, Any]
    sources: Sequence[str]
    parts: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["rollout_id"])


def buffer_arrays(buffer: Keeper) -> dict[str, NDArray[Any]]:
    """Everything a buffer is, by name."""
    buffer._contents.compact(exact=True)  # as it will be loaded: both go on alike, to the last bit
    arrays = small_arrays(buffer)
    if len(buffer):
        arrays |= to_arrays(held_rollouts(buffer), prefix="rollouts.")
        table, parts = buffer._contents.table, buffer._contents.payload.shared_parts
        arrays |= {f"together.{name}": numbered(table[name][table.live()]) for name in parts}
    return arrays


def held_rollouts(buffer: Keeper) -> Rollouts:
    """Rollouts held, oldest first; a copy that counts as no use."""
    contents = buffer._contents
    return contents.rollouts(contents.table.gather(contents.table.live()), FreshMemory())


def small_arrays(buffer: Keeper) -> dict[str, NDArray[Any]]:
    """Counters, statistics, book-keeping of every row, state of sampler and retention: all but the rollouts."""
    values = (
        buffer._added,
        buffer._first_id,
        buffer._id_stride,
        buffer._inserted,
        buffer._sampled,
        buffer.train_step,
    )
    arrays = {"counters": np.array(values, np.int64), "limiter": np.array(repr(buffer.limiter))}
    arrays |= {f"statistics.{name}": array for name, array in buffer.statistics.state_arrays().items()}
    table = buffer._contents.table
    arrays["sources"] = np.array(table.sources, np.str_)
    arrays |= {f"book.{name}": table[name][table.live()] for name in BOOK_TYPES}
    for label, part in _parts(buffer):
        if isinstance(part, Remembering):
            arrays |= {f"part.{label}.{name}": array for name, array in part.state_arrays().items()}
    return arrays


def checked_arrays(buffer: Keeper, arrays: Mapping[str, NDArray[Any]]) -> Saved:
    """What `buffer_arrays` gave, ready to `install`. Raises `CheckpointError`."""
    try:
        return read_state(arrays, *_payload_of(buffer, arrays), buffer=buffer)
    except (KeyError, TypeError, ValueError, IndexError, FloatingPointError) as error:
        raise CheckpointError(f"buffer state is incomplete: {error}") from error


def read_state(
    arrays: Mapping[str, NDArray[Any]],
    payload: Payload,
    columns: Mapping[str, Any],
    sources: Sequence[str],
    *,
    buffer: Keeper,
) -> Saved:
    """The checked state in `small_arrays`, for rows whose columns and payload are already there.

    Raises `KeyError`, `TypeError` or `ValueError` (`DataError`) when something is missing or contradicts the rest.
    """
    counters = [int(value) for value in arrays["counters"]]
    if len(counters) != len(COUNTERS):
        raise DataError(f"counters hold {len(counters)} numbers, expected {len(COUNTERS)}")
    counted = BufferStatistics(buffer.statistics.correct_above)
    counted.load_state_arrays({k[len("statistics.") :]: v for k, v in arrays.items() if k.startswith("statistics.")})
    book = {name: arrays[f"book.{name}"] for name in BOOK_TYPES}
    n = len(book["rollout_id"])
    for name, column in book.items():
        if column.shape != (n,) or column.dtype != BOOK_TYPES[name]:
            raise DataError(f"book.{name} is {described(column)}, expected {np.dtype(BOOK_TYPES[name])} ({n},)")
    if np.any(np.diff(book["rollout_id"]) <= 0):
        raise DataError("rollout ids do not rise")
    if not all((book[name] >= least).all() for name, least in LEAST.items()) or not np.isfinite(book["priority"]).all():
        raise DataError(f"the book holds a number below {LEAST} or a priority that is not finite")
    own = [buffer._first_id, buffer._id_stride]
    if own != [0, 1] and own != counters[1:3]:
        raise DataError(f"first_id and id_stride are {counters[1:3]}, those of this buffer {own}")
    if n and book["rollout_id"][-1] >= counters[1] + counters[2] * counters[0]:
        raise DataError(f"rollout id {book['rollout_id'][-1]} after {counters[0]} rollouts added")
    if n != len(columns["length"]):
        raise DataError(f"{len(columns['length'])} rollouts for {n} rows of the book")
    parts = {k.removeprefix("part."): v for k, v in arrays.items() if k.startswith("part.")}
    _rehearse(buffer, parts)
    return Saved(counters, str(arrays["limiter"]), counted, payload, dict(columns) | book, sources, parts)


def install(buffer: Keeper, saved: Saved) -> None:
    """Make a buffer hold what was read: as much as fits, the rest leaves in its order of eviction."""
    contents, holdings = buffer._contents, buffer._holdings
    buffer._added, buffer._first_id, buffer._id_stride = saved.counters[:3]
    buffer.statistics = holdings.statistics = saved.statistics
    contents.train_step = saved.counters[5]
    contents.adopt(saved.payload, saved.columns, saved.sources, len(saved))
    holdings.look_again()
    for part, own in _remembered(buffer, saved.parts):
        part.load_state_arrays(own)
    contents.compact()  # what keeps an index matches its state with the rows
    holdings.make_room(None, np.empty(0, np.int64))
    same = saved.limiter == repr(buffer.limiter)  # under another one nobody inherits a debt
    buffer._inserted, buffer._sampled = saved.counters[3:5] if same else (buffer.limiter.origin(len(buffer)), 0)


def _payload_of(buffer: Keeper, arrays: Mapping[str, NDArray[Any]]) -> tuple[Payload, dict[str, Any], tuple[str, ...]]:
    kernels, sources = buffer._contents.kernels, tuple(arrays["sources"].tolist())
    if not len(arrays["book.rollout_id"]):
        empty = np.empty(0, np.int64)
        return (
            Payload({}, {}, kernels),
            dict.fromkeys((*ROWS, "source_code", "length", *HANDLES), empty),
            sources,
        )
    rollouts = from_arrays(arrays, prefix="rollouts.")
    payload = Payload.for_rollouts(rollouts, kernels)
    known = Table(sources=sources)
    names = [name for name in payload.shared_parts if f"together.{name}" in arrays]  # older states have none
    together = {name: arrays[f"together.{name}"] for name in names}
    for name, numbers in together.items():
        if numbers.dtype != np.int64 or numbers.shape != (len(rollouts),):
            raise DataError(f"together.{name} is {described(numbers)}, expected int64 ({len(rollouts)},)")
    handles = payload.put(rollouts, kernels.inspect(rollouts), together=together)
    columns = {name: getattr(rollouts, name) for name in ROWS} | handles
    columns |= {"source_code": known.code_of(rollouts.source), "length": rollouts.lengths}
    return payload, columns, known.sources


def _remembered(
    buffer: Keeper, parts: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[Remembering, dict[str, NDArray[Any]]]]:
    """Sampler, rules and eviction order for which something was saved, and what."""
    for label, part in _parts(buffer):
        own = {k.removeprefix(f"{label}."): v for k, v in parts.items() if k.startswith(f"{label}.")}
        if isinstance(part, Remembering) and own:
            yield part, own


def _rehearse(buffer: Keeper, parts: Mapping[str, NDArray[Any]]) -> None:
    """Raise what a part that is to take over its state would raise; then all stay what they were."""
    for part, own in _remembered(buffer, parts):
        before = part.state_arrays()
        try:
            part.load_state_arrays(own)
        finally:
            part.load_state_arrays(before)
            buffer._contents.compact()  # what keeps an index matches its state with the rows again


def _parts(buffer: Keeper) -> Iterator[tuple[str, object]]:
    yield f"sampler.{type(buffer.sampler).__name__}", buffer.sampler
    for index, rule in enumerate(buffer._holdings.rules):
        yield f"rule{index}.{type(rule).__name__}", rule
    yield f"eviction.{type(buffer._holdings.eviction).__name__}", buffer._holdings.eviction
