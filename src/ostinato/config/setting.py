"""A documented setting: default, meaning, range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    words: Sequence[str] = (),
) -> Any:
    """A documented field with its allowed range (inclusive) or choices; `words` may stand in place of a number."""
    return field(default=default, metadata=described(help, low=low, high=high, choices=choices, words=words))


def described(
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    words: Sequence[str] = (),
) -> dict[str, Any]:
    """What a field tells about itself: meaning, range, choices, words in place of a number."""
    return {"help": help, "low": low, "high": high, "choices": choices, "words": words}
