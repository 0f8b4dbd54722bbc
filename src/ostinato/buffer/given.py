"""Rollouts as their makers have them: rows that stand apart, and plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ostinato.buffer.kernels import Apart, Kernels, address
from ostinato.buffer.tally import ROWS
from ostinato.rollouts import Rollouts

MOST_KEPT = 16
"""Records that are kept, one for each number of rollouts and set of columns."""


class Given:
    """Reads rollouts, in one compiled call, into records that are written anew for those that come next.

    To make the nineteen arrays of a record, and to join its token rows, takes longer than to store what they hold.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._read: Any = getattr(kernels, "read", None)
        self._numbered: Mapping[str, int] = getattr(kernels, "number_kinds", {})
        self._kept: dict[tuple[Any, ...], Apart | None] = {}
        self._latest: Apart | None = None

    def __getstate__(self) -> dict[str, Any]:  # a copy makes records of its own: these hold addresses
        return self.__dict__ | {"_kept": {}, "_latest": None}

    def read(self, rows: tuple[Any, Any, Any], columns: Mapping[str, Any], *, alone: bool) -> Apart | None:
        """Rows of tokens, masks and log-probs, and row columns, as `Rollouts.from_rows` takes them.

        `alone`: one row each, and values instead of columns. None: there is something that is to be derived, is wrong
        or may be wrong. What is read is not looked at yet, and valid until the next call; `forget` it then.
        """
        source = columns.get("source", "")
        if self._read is None or type(source) is not str or "\0" in source:
            return None
        tokens, masks, logprobs = rows
        if alone:
            tokens, masks, logprobs = (tokens,), (masks,), (logprobs,)
        else:
            for row in rows:
                if type(row) is not list and type(row) is not tuple:
                    return None
            tokens, masks, logprobs = tuple(tokens), tuple(masks), tuple(logprobs)  # which stay while they are copied
        key = (len(tokens), *columns)
        apart = self._kept[key] if key in self._kept else self._keep(key)
        if apart is None:
            return None
        values = [*columns.values()]
        if "source" in columns:
            values = [value for name, value in columns.items() if name != "source"]
        if apart.one_version:
            values.append(columns["policy_version_min"])
        self._latest = apart
        apart.source, apart.given = source, (tokens, masks, logprobs, *values)
        if self._read(apart, alone):
            return apart
        if np.ndarray in map(type, values):
            apart.given = (tokens, masks, logprobs, *(v.tolist() if _is_numbers(v) else v for v in values))
            if self._read(apart, alone):
                return apart
        return None

    def forget(self) -> None:
        """Let go of what was given last, whatever has become of it."""
        if self._latest is not None:
            self._latest.given = ()

    def _keep(self, key: tuple[Any, ...]) -> Apart | None:
        """A record for so many rollouts and columns of these names; None: not all can be read."""
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        n, *columns = key
        names, apart = [name for name in columns if name != "source"], None
        if {"prompt_length", "prompt_id"} <= {*names} <= self._numbered.keys():
            one_version = "policy_version_min" in names and "policy_version_max" not in names
            names += ["policy_version_max"] * one_version
            record = Rollouts.from_rows([[]] * n, [[]] * n, [[]] * n)
            places = {name: address(getattr(record, name)) for name in ROWS}
            numbers = [*places.values()], [self._numbered[name] for name in names], [places[name] for name in names]
            apart = Apart(record, one_version, *map(np.array, numbers))
        self._kept[key] = apart
        return apart


def _is_numbers(value: Any) -> bool:
    """Whether it is an array of numbers, of one dimension."""
    return type(value) is np.ndarray and value.ndim == 1 and value.dtype.kind in "biuf"
