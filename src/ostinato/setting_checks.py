"""Checks of settings: impossible ones are refused at construction, and what passes comes back as a plain value.

Numbers may be Python's or numpy's; a numpy integer is made a Python one, so that no arithmetic with it wraps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from ostinato.errors import ConfigError

MOST = 1 << 62
"""Bound of whole numbers: with it sums and differences of two of them fit in 64 bits."""

SHOWN = 80


def shown(value: object) -> str:
    """How messages show a value: on one line, not much longer than 80 characters."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def check_whole(name: str, value: Any, *, least: int, most: int = MOST) -> int:
    """The value as int. Raises `ConfigError` unless it is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} must be an integer, got {shown(value)}")
    number = int(value)
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, got {shown(number)}")
    if number > most:
        raise ConfigError(f"{name} must be at most {most}, got {shown(number)}")
    return number


def check_finite(name: str, value: Any) -> float:
    """The value as float. Raises `ConfigError` unless it is a finite number."""
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ConfigError(f"{name} must be a finite number, got {shown(value)}")


def check_positive(name: str, value: Any) -> float:
    """The value as float. Raises `ConfigError` unless it is a finite number above 0."""
    number = check_finite(name, value)
    if number <= 0:
        raise ConfigError(f"{name} must be above 0, got {shown(value)}")
    return number


def check_not_negative(name: str, value: Any) -> float:
    """The value as float. Raises `ConfigError` unless it is a finite number of at least 0."""
    number = check_finite(name, value)
    if number < 0:
        raise ConfigError(f"{name} must be at least 0, got {shown(value)}")
    return number


def check_share(name: str, value: Any) -> float:
    """The value as float. Raises `ConfigError` unless it lies between 0 and 1, both included."""
    number = check_finite(name, value)
    if not 0 <= number <= 1:
        raise ConfigError(f"{name} must lie between 0 and 1, got {shown(value)}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """The value as bool. Raises `ConfigError` unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def check_choice(name: str, value: Any, choices: Sequence[str | None]) -> None:
    """Raise `ConfigError` unless the value is one of these."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{name} must be one of {listed}, got {shown(value)}")
