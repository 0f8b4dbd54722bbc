"""Recipes: settings from a TOML file and from `--section.key value`, through the same checks.

A value that is out of range, of the wrong type or unknown raises `ConfigError` with one line.
"""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ostinato.config import RunConfig
from ostinato.errors import ConfigError
from ostinato.setting_checks import shown

LARGEST = 10**12
"""No setting is larger: beyond it lie typing errors, and arithmetic that no longer is exact."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a TOML recipe and apply `--section.key value` overrides. Raises `ConfigError`."""
    where = f"{path} and the command line" if overrides else str(path)
    return config_from_dict(recipe_tree(path, overrides), where=where)


def recipe_tree(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe as nested dictionaries, overrides applied, not yet checked."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"recipe {path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:  # a ValueError that is no TOML error: thousands of digits
        raise ConfigError(f"recipe {path} cannot be read: {error}") from None
    return apply_overrides(tree, overrides)


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set what `--section.key value` words say in nested settings, in place; a table given as a value replaces."""
    for key, value in _parse_overrides(overrides):
        *sections, last = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--{key}: {section} is a value, not a section")
        place[last] = value
    return tree


def config_from_dict(tree: Mapping[str, Any], where: str = "settings") -> RunConfig:
    """Build a `RunConfig`; every key must exist, every value must have the field's type and lie in its range."""
    return typing.cast(RunConfig, _build(RunConfig, tree, "", where))


def settings_help() -> Iterator[tuple[str, str, str]]:
    """(dotted name, default, help) of every setting, in order."""
    for section in fields(RunConfig):
        if is_dataclass(section.default_factory):
            for item in fields(section.default_factory):
                yield f"{section.name}.{item.name}", _shown(item), item.metadata["help"]
        elif section.name != "arms":
            yield section.name, _shown(section), section.metadata["help"]


def merge(tree: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `other` over `tree`, table by table, in place."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = value
    return tree


def _build(cls: type[Any], tree: Mapping[str, Any], prefix: str, where: str) -> Any:
    known = {item.name: item for item in fields(cls)}
    for key in tree:
        if key not in known:
            near = _nearest(prefix + key)
            raise ConfigError(f"{where}: unknown setting {shown(prefix + key)}; did you mean {near!r}?")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        name, kind = prefix + key, hints[key]
        if is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {name} is a section, got the value {shown(value)}")
            values[key] = _build(typing.cast(type[Any], kind), value, name + ".", where)
        else:
            values[key] = _checked(name, value, kind, known[key], where)
    return cls(**values)


def _checked(name: str, value: Any, kind: Any, item: Field[Any], where: str) -> Any:
    union = kind.__args__ if isinstance(kind, types.UnionType) else ()
    if types.NoneType in union and value in (None, "none"):
        return None
    words = item.metadata["words"]
    if isinstance(value, str) and value in words:
        return value
    base = union[0] if union else typing.get_origin(kind) or kind
    if base is float and type(value) is int and abs(value) <= LARGEST:
        value = float(value)
    if type(value) is not base and not (base is float and type(value) is int):
        expected = " or ".join([base.__name__, *map(repr, words)])
        raise ConfigError(f"{where}: {name} expects {expected}, got {type(value).__name__} {shown(value)}")
    if isinstance(value, dict):
        _refuse_odd_values(name, value, where)
    low, high, choices = item.metadata["low"], item.metadata["high"], item.metadata["choices"]
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise ConfigError(f"{where}: {name} must be a finite number of at most {LARGEST:,}, got {shown(value)}")
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = (
            f"at least {low}" if high is None else f"between {low} and {high}" if low is not None else f"at most {high}"
        )
        raise ConfigError(f"{where}: {name} must be {bounds}, got {value}")
    if choices and value not in choices:
        raise ConfigError(f"{where}: {name} must be one of {', '.join(choices)}, got {shown(value)}")
    return value


def _refuse_odd_values(name: str, value: Any, where: str) -> None:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            _refuse_odd_values(f"{name}.{key}", item, where)
        elif not isinstance(item, bool | int | float | str):
            raise ConfigError(f"{where}: {name}.{key} must be a number, text or true/false, got {shown(item)}")


def _nearest(name: str) -> str:
    name = name.lower()
    names = [key for key, _, _ in settings_help()]
    section = name.partition(".")[0]
    within = [key for key in names if key.startswith(f"{section}.")]
    if within and section != name:
        return difflib.get_close_matches(name, within, n=1, cutoff=0)[0]
    sections = difflib.get_close_matches(section, sorted({key.partition(".")[0] for key in names}), n=1, cutoff=0.6)
    if sections:
        return sections[0]
    last = name.rsplit(".", 1)[-1]
    by_whole = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    by_last = difflib.get_close_matches(last, [key.rsplit(".", 1)[-1] for key in names], n=1, cutoff=0)
    if by_whole:
        return by_whole[0]
    return next((key for key in names if by_last and key.rsplit(".", 1)[-1] == by_last[0]), names[0])


def _parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise ConfigError(f"expected --section.key value, got {word!r}")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key} needs a value")
            value = rest.pop(0)
        yield key.replace("-", "_") if "options" not in key else key, _toml_value(value)


def _toml_value(text: str) -> Any:
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # thousands of digits or brackets, too
        return text
    return tree["value"] if list(tree) == ["value"] else text


def _shown(item: Field[Any]) -> str:
    default = item.default if item.default is not MISSING else {}
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default) or '""'
