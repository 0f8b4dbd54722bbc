"""Retention: which rows stay?

Any number of rules say who may stay at all; at most one eviction order says who leaves when there is no room. By
default the oldest leave. Rules and orders read columns and name rows; only the buffer removes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ostinato.buffer.retention.eviction import Eviction, OldestFirst, SmartEviction
from ostinato.buffer.retention.positive_bias import PositiveBias
from ostinato.buffer.retention.ranked import KeepBest, Reservoir
from ostinato.buffer.retention.rules import MaxStaleness, MaxUses, NewestPerPrompt, Rule
from ostinato.errors import ConfigError
from ostinato.setting_checks import shown

Retention: TypeAlias = Rule | Eviction

__all__ = [
    "Eviction",
    "KeepBest",
    "MaxStaleness",
    "MaxUses",
    "NewestPerPrompt",
    "OldestFirst",
    "PositiveBias",
    "Reservoir",
    "Retention",
    "Rule",
    "SmartEviction",
    "split_retention",
]


def split_retention(retention: Sequence[Retention]) -> tuple[tuple[Rule, ...], Eviction]:
    """What a buffer is given, told apart. Raises `ConfigError` for two eviction orders, or for something else."""
    if isinstance(retention, (Rule, Eviction)):
        raise ConfigError(f"retention is a list of rules and at most one eviction order, got {retention!r} alone")
    if isinstance(retention, str) or not isinstance(retention, Sequence):
        raise ConfigError(f"retention must be a list of rules and at most one eviction order, got {shown(retention)}")
    orders: list[Eviction] = []
    rules: list[Rule] = []
    for item in retention:
        if isinstance(item, type):
            raise ConfigError(f"retention holds the class {item.__name__}, expected an instance: {item.__name__}(...)")
        if isinstance(item, Eviction):
            orders.append(item)
        elif isinstance(item, Rule):
            rules.append(item)
        else:
            raise ConfigError(f"retention must be rules and at most one eviction order, got {shown(item)}")
    if len(orders) > 1:
        raise ConfigError(f"at most one eviction order, got {orders[0]!r} and {orders[1]!r}")
    return tuple(rules), orders[0] if orders else OldestFirst()
