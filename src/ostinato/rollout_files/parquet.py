"""Rollouts as Parquet: token columns are lists, row columns are columns, the schema carries format and dtypes.

    tokens list<int32>, loss_mask list<bool>, behavior_logprobs list<float>, <row columns>, extra.<name>

A file of another schema is read record by record, under the names that JSONL lines may use.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError, MissingExtraError
from ostinato.ragged import Extra, Ragged, offsets_of
from ostinato.rollout_files.extras import Layout
from ostinato.rollout_files.logged import open_logged
from ostinato.rollout_files.pieces import pieces
from ostinato.rollout_files.placing import new_file
from ostinato.rollout_files.settings import ReadReport, ReadRules, RolloutFile
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts

FORMAT = 1
KEY = b"ostinato.rollouts"
"""Entry of the schema's metadata: {"format": 1, "extras": {name: layout}, "crc32": of the layouts} as JSON."""

EXTRA = "extra."
ROW_GROUP_BYTES = 1 << 27
"""About; far from the 2^31 values that a list column holds."""


def open_parquet(path: Path, rules: ReadRules) -> RolloutFile:
    """Open a file of `write_parquet`, or look one of other origin through as if its rows were JSONL lines.

    Raises `DataError` when it is damaged, of a later format, or has rows that cannot be used; `MissingExtraError`.
    """
    pq = _pyarrow("pyarrow.parquet")
    try:
        with pq.ParquetFile(path) as file:
            metadata, rows = file.schema_arrow.metadata or {}, file.metadata.num_rows
    except (_pyarrow("pyarrow").ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not the content: no such file, no right to read it
            raise
        raise DataError(f"{path} is no whole Parquet file: {error}") from None
    if KEY not in metadata:
        if any(value.startswith(b'{"format": ') and b'"extras"' in value for value in metadata.values()):
            raise DataError(f"{path} has damaged metadata: its layouts stand under another name than {KEY.decode()}")
        return open_logged(path, "parquet", lambda: _records(path, rules.chunk_rollouts), rules)
    layouts = _layouts(metadata[KEY], path)
    if rules.extras is not None:
        for name in set(rules.extras) - set(layouts):
            raise DataError(f"{path} has no extra column {name!r}, but {', '.join(map(repr, layouts)) or 'none'}")
        layouts = {name: layout for name, layout in layouts.items() if name in rules.extras}
    report = ReadReport(rollouts=rows, kept=list(layouts))
    return RolloutFile(path, "parquet", report, lambda: _parts(path, layouts, rows, rules.chunk_rollouts))


def write_parquet(path: Path, parts: Iterable[Rollouts], *, overwrite: bool = False) -> int:
    """Write rollouts, at least a row group a part, whole or not at all; returns their number. What comes back is equal.

    Parts must share their extra columns. Raises `ConfigError` when the file exists and may not be overwritten,
    `DataError` for extra columns that Parquet cannot hold, `MissingExtraError` without pyarrow.
    """
    pa, pq = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    remaining = iter(parts)
    first = next(remaining, None) or Rollouts.from_completions([], [], [])
    layouts = {name: Layout.of(name, column) for name, column in first.extras.items()}
    extras = {name: asdict(layout) for name, layout in layouts.items()}
    about = {"format": FORMAT, "extras": extras, "crc32": _checksum(extras)}
    schema = _schema(pa, layouts).with_metadata({KEY: json.dumps(about).encode()})
    written = 0
    with (
        new_file(path, overwrite=overwrite) as file,
        pq.ParquetWriter(file, schema, write_page_checksum=True) as writer,
    ):
        for part in chain([first], remaining):
            if {name: Layout.of(name, column) for name, column in part.extras.items()} != layouts:
                raise DataError(f"extra columns {sorted(part.extras)} differ from those before, {sorted(layouts)}")
            for piece in pieces(part, rollouts=len(part), nbytes=ROW_GROUP_BYTES):
                writer.write_table(_table(pa, schema, piece, layouts), row_group_size=len(piece))
            written += len(part)
    return written


def _table(pa: Any, schema: Any, part: Rollouts, layouts: Mapping[str, Layout]) -> Any:
    columns = [_list(pa, getattr(part, name), part.offsets) for name in TOKEN_COLUMNS]
    try:
        columns += [pa.array(getattr(part, name)) for name in ROW_COLUMNS]
        columns += [_extra(pa, part.extras[name], layout) for name, layout in layouts.items()]
        cast = [column.cast(to) for column, to in zip(columns, schema.types, strict=True)]
        return pa.Table.from_arrays(cast, schema=schema)
    except (pa.ArrowException, UnicodeError) as error:
        raise DataError(f"a column cannot stand in Parquet: {error}") from None


def _schema(pa: Any, layouts: Mapping[str, Layout]) -> Any:
    def arrow(dtype: Any) -> Any:
        return pa.string() if np.dtype(dtype).kind == "U" else pa.from_numpy_dtype(dtype)

    fields = [(name, pa.list_(arrow(dtype))) for name, dtype in TOKEN_COLUMNS.items()]
    fields += [(name, arrow(dtype)) for name, dtype in ROW_COLUMNS.items()]
    for name, layout in layouts.items():
        if not encodable(name):
            raise DataError(f"extra column {name!r} has a name that is no UTF-8, which Parquet needs")
        value = arrow(layout.dtype if layout.plain else np.uint8)
        lists = layout.ragged or layout.shape or not layout.plain
        fields.append((EXTRA + name, pa.list_(value) if lists else value))
    return pa.schema(fields)


def _extra(pa: Any, column: Extra, layout: Layout) -> Any:
    values, offsets = (column.values, column.offsets) if isinstance(column, Ragged) else (column, None)
    written = layout.written(values)
    if offsets is None and written.ndim == 1:
        return pa.array(written)
    size = int(np.prod(written.shape[1:]))
    return _list(pa, written.reshape(-1), (np.arange(len(column) + 1) if offsets is None else offsets) * size)


def _list(pa: Any, values: NDArray[Any], offsets: NDArray[np.int64]) -> Any:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise DataError(f"{offsets[-1]} values in one row group, expected fewer than 2^31")
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _checksum(extras: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(extras).encode())


def _layouts(about: bytes, path: Path) -> dict[str, Layout]:
    try:
        record = json.loads(about)
        if record["format"] != FORMAT:
            raise DataError(f"{path} has rollout format {record['format']}, expected {FORMAT}")
        if record.get("crc32", _checksum(record["extras"])) != _checksum(record["extras"]):
            raise ValueError("the layouts of the extra columns are not those that were written")
        return {
            name: Layout(str(kept["dtype"]), tuple(kept["shape"]), bool(kept["ragged"]))
            for name, kept in record["extras"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} has damaged metadata: {type(error).__name__}: {error}") from None


def _parts(path: Path, layouts: Mapping[str, Layout], rows: int, chunk: int) -> Iterator[Rollouts]:
    read = 0
    for batch in _batches(path, chunk):
        try:
            part = _rollouts(batch, layouts)
        except (KeyError, ValueError, TypeError, AttributeError) as error:  # a column is absent, or of another kind
            raise DataError(f"{path} is not what its metadata says: {error}") from None
        read += len(part)
        yield part
    if read != rows:
        raise DataError(f"{path} is damaged: {read} rollouts can be read, its metadata says {rows}")


def _batches(path: Path, chunk: int) -> Iterator[Any]:
    pa, pq = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield from file.iter_batches(batch_size=chunk)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def _rollouts(batch: Any, layouts: Mapping[str, Layout]) -> Rollouts:
    tokens, offsets = _flat(batch["tokens"])
    extras: dict[str, Extra] = {}
    for name, layout in layouts.items():
        column, n = batch[EXTRA + name], batch.num_rows
        if layout.ragged:
            values, starts = _flat(column)
            item = np.dtype(layout.dtype).itemsize if not layout.plain else 1
            entries = starts // (int(np.prod(layout.shape)) * item)
            extras[name] = Ragged(layout.restored(values, int(entries[-1])), entries)
        else:
            flat = _flat(column)[0] if layout.shape or not layout.plain else _numpy(column)
            extras[name] = layout.restored(flat, n)
    return Rollouts(
        tokens=tokens,
        offsets=offsets,
        **{name: _flat(batch[name])[0] for name in TOKEN_COLUMNS if name != "tokens"},
        **{name: _numpy(batch[name]).astype(dtype) for name, dtype in ROW_COLUMNS.items()},
        extras=extras,
    )


def _flat(column: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    return _numpy(column.flatten()), offsets_of(_numpy(column.value_lengths()).astype(np.int64))


def _numpy(column: Any) -> NDArray[Any]:
    if column.null_count:
        raise DataError(f"a column has {column.null_count} nulls")
    return np.array(column.to_numpy(zero_copy_only=False))


def _records(path: Path, chunk: int) -> Iterator[tuple[int, Any]]:
    number = 0
    for batch in _batches(path, chunk):
        for record in batch.to_pylist():
            number += 1
            yield number, _with_extras(record)


def _with_extras(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Extra columns under their own names, for a file of ours that another tool wrote again without the metadata."""
    extras = {name.removeprefix(EXTRA): value for name, value in record.items() if name.startswith(EXTRA)}
    if not extras or "extras" in record:
        return record
    return {name: value for name, value in record.items() if not name.startswith(EXTRA)} | {"extras": extras}


def encodable(name: str) -> bool:
    """Whether the name can be written; a lone surrogate cannot."""
    return name.encode("utf-8", "replace").decode() == name


def _pyarrow(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet") from None
