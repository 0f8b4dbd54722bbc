"""Records of several completions of one prompt, as engines hand them out: vLLM's `outputs`, the `choices` of OpenAI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ostinato.errors import DataError
from ostinato.rollout_files.names import FIELD_OF, NESTED

OF_ONE = frozenset({"prompt_length", "logprobs", "loss_mask"})
"""Fields that belong to one completion and cannot stand beside several."""

OF_ALL = frozenset({"prompt_ids", "extras"})
"""Fields whose value, a list or not, holds for every completion."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion: its record, and of a nested record where it stands in it and what names their common group."""

    record: Mapping[str, Any]
    place: str = ""
    group: bytes | None = None


def completions_of(record: Mapping[str, Any], rename: Mapping[str, str]) -> Iterator[Completion]:
    """The completions of a record: itself, or each object of its `outputs` or `choices` with the fields beside them.

    A record with token ids of its own is one completion, whatever else it holds. What a completion says itself comes
    before what stands beside; a list beside them holds one entry a completion. Raises `DataError`.
    """
    fields = {name: rename.get(name) or FIELD_OF.get(name) for name, value in record.items() if value is not None}
    found = [name for name in fields if rename.get(name, name) in NESTED and _objects(record[name])]
    if not found or {"completion_ids", "tokens"} & set(fields.values()):
        yield Completion(record)
        return
    if len(found) > 1:
        raise DataError(f"{found[0]!r} and {found[1]!r} both hold completions, expected one of them")
    [name] = found
    inner = record[name]
    beside = {other: record[other] for other in fields if other != name}
    _check_beside(beside, fields, name, len(inner))
    for index, completion in enumerate(inner):
        shared = {other: value[index] if _one_each(value, fields[other]) else value for other, value in beside.items()}
        own = {other: value for other, value in completion.items() if value is not None or other not in shared}
        yield Completion({**shared, **own}, f"{name}[{index}]", repr(inner[0]).encode("utf-8", "surrogatepass"))


def _check_beside(beside: Mapping[str, Any], fields: Mapping[str, str | None], name: str, count: int) -> None:
    for other, value in beside.items():
        if fields[other] in OF_ONE:
            raise DataError(f"{other!r} stands beside {name!r}, expected it in each object of {name!r}")
        if _one_each(value, fields[other]) and len(value) != count:
            raise DataError(f"{other!r} has {len(value)} entries beside {count} {name}, expected one value or one each")


def _one_each(value: Any, field: str | None) -> bool:
    return isinstance(value, list) and field is not None and field not in OF_ALL


def _objects(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(entry, Mapping) for entry in value)
