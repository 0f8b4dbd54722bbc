"""Checks of settings that only a buffer has: functions and samplers."""

from __future__ import annotations

from typing import Any

from ostinato.errors import ConfigError
from ostinato.setting_checks import shown


def is_function(value: object) -> bool:
    """Whether it can be called for what it gives; a class gives only instances."""
    return callable(value) and not isinstance(value, type)


def check_sampler(name: str, sampler: Any) -> None:
    """Raise `ConfigError` unless this is a sampler: an instance, with `repeats` and a call."""
    if isinstance(sampler, type):
        raise ConfigError(f"{name} is the class {sampler.__name__}, expected an instance: {sampler.__name__}(...)")
    if not callable(sampler) or not hasattr(sampler, "repeats"):
        raise ConfigError(f"{name} must be a sampler such as Uniform(), got {shown(sampler)}")
