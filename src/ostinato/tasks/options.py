"""Difficulty settings of a task: checked like every other setting, with the nearest valid name on a slip."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ostinato.errors import ConfigError


def nearest(name: str, known: Iterable[str]) -> str:
    """The member of `known` (not empty) that looks most like `name`."""
    names = list(known)
    return (difflib.get_close_matches(name, names, n=1, cutoff=0) or names)[0]


def refuse_unknown(task: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` for the first option of `given` that is not `known`."""
    names = list(known)
    for name in given:
        if name not in names:
            hint = f"did you mean {nearest(name, names)!r}?" if names else "it takes no options"
            raise ConfigError(f"task.options: unknown option {name!r} of task {task!r}; {hint}")


def integer_options(task: str, given: Mapping[str, Any], **known: tuple[int, int, int]) -> dict[str, int]:
    """The options of a task, `known` giving (default, low, high) of each, bounds inclusive.

    Raises `ConfigError` on an unknown name, a value that is not an integer, or one out of range.
    """
    refuse_unknown(task, given, known)
    settings: dict[str, int] = {}
    for name, (default, low, high) in known.items():
        value = given.get(name, default)
        if type(value) is not int or not low <= value <= high:
            raise ConfigError(
                f"task.options.{name} of task {task!r} must be an integer between {low} and {high}, got {value!r}"
            )
        settings[name] = value
    return settings
