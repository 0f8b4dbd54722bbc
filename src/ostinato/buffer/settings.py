"""Checks of settings: impossible ones are refused at construction."""

from __future__ import annotations

import math
from numbers import Integral, Real

from ostinato.errors import ConfigError


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise `ConfigError` unless `value` is an integer from `least` up."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")


def check_finite(name: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raise `ConfigError` unless `value` is a finite number above 0."""
    check_finite(name, value)
    if value <= 0:
        raise ConfigError(f"{name} must be above 0, got {value}")


def check_share(name: str, value: float) -> None:
    """Raise `ConfigError` unless `value` lies between 0 and 1, both included."""
    check_finite(name, value)
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must lie between 0 and 1, got {value}")
