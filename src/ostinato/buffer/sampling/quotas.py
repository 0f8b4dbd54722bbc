"""Shares of a batch by source, and the arithmetic of exact counts."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.plain import Uniform
from ostinato.buffer.sampling.protocol import (
    Picked,
    Rows,
    Sampler,
    load_states,
    new_priority_of,
    picked,
    size_given,
    states_of,
    tell_changed,
    tell_rebuilt,
)
from ostinato.buffer.sampling.rowset import RowSet, Subset
from ostinato.buffer.settings import check_sampler
from ostinato.errors import ConfigError, DataError
from ostinato.setting_checks import check_positive, shown


class Quotas:
    """A fixed fraction of every batch from each source, in random order.

    `fractions`: source name -> fraction, above 0, adding up to 1; counts are exact by largest remainder. `inner` draws
    within a source; every source has its own copy. A source that cannot fill its part gives what is missing to the
    others by their fractions; `shortfall` counts those rollouts by source since the start. Rollouts of sources without
    a fraction are never drawn. Raises `ConfigError` for fractions without meaning, `DataError` when the sources
    together hold too few.
    """

    def __init__(self, fractions: Mapping[str, float], inner: Sampler | None = None) -> None:
        self.fractions = _checked_fractions(fractions)
        inner = Uniform() if inner is None else inner
        check_sampler("inner", inner)
        self.shortfall = dict.fromkeys(self.fractions, 0)
        self._inner = {name: deepcopy(inner) for name in self.fractions}
        self._members = {name: RowSet() for name in self.fractions}

    @property
    def repeats(self) -> bool:
        return any(inner.repeats for inner in self._inner.values())

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Picked:
        size = size_given(self, n)
        counts = self._counts(size)
        drawn: list[Picked] = []
        for (name, inner), count in zip(self._inner.items(), counts, strict=True):
            if count:
                drawn.append(picked(inner(Subset(columns, self._members[name]), int(count), rng)))
        return joined(drawn, rng.permutation(size))

    def rebuilt(self, columns: Columns) -> None:
        """Row numbers changed, or everything did."""
        for name, members in self._members.items():
            members.rebuilt(columns.alive & (columns["source_code"] == _code(columns, name)))
            tell_rebuilt(self._inner[name], Subset(columns, members))

    def changed(self, columns: Columns, rows: Rows) -> None:
        """These rows were appended, removed, drawn or written."""
        alive, codes = columns.alive[rows], columns["source_code"][rows]
        for name, members in self._members.items():
            members.assign(columns.span, rows, alive & (codes == _code(columns, name)))
            tell_changed(self._inner[name], Subset(columns, members), rows)

    def new_priority(self, columns: Columns) -> float:
        """As the inner sampler says."""
        return new_priority_of(self._inner.values(), columns)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """State of the inner samplers, by source."""
        return states_of(self._inner)

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state_arrays`."""
        load_states(self._inner, arrays)

    def _counts(self, n: int) -> NDArray[np.int64]:
        held = np.array([len(members) for members in self._members.values()])
        repeat = np.array([inner.repeats for inner in self._inner.values()])
        limits = np.where(repeat & (held > 0), n, held)
        fractions = np.array(list(self.fractions.values()))
        if limits.sum() < n:
            raise DataError(
                f"Quotas cannot draw {n}: the sources hold {dict(zip(self.fractions, held.tolist(), strict=True))}"
            )
        counts = limited(fractions, limits, n)
        missing = np.maximum(largest_remainder(fractions, n) - limits, 0)
        for name, short in zip(self.fractions, missing.tolist(), strict=True):
            self.shortfall[name] += short
        return counts


def _checked_fractions(fractions: Any) -> dict[str, float]:
    """Fractions by source. Raises `ConfigError` unless they are above 0 and add up to 1."""
    if not isinstance(fractions, Mapping) or not all(isinstance(name, str) for name in fractions):
        raise ConfigError(f"quotas must be a dict from source to fraction, got {shown(fractions)}")
    checked = {name: check_positive(f"quota of source {name!r}", value) for name, value in fractions.items()}
    if abs(sum(checked.values()) - 1) > 1e-9:
        raise ConfigError(f"quotas must be above 0 and add up to 1, got {shown(checked)}")
    return checked


def largest_remainder(fractions: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """n split by fractions that add up to 1: whole parts first, the rest to the largest remainders, then in order."""
    exact = fractions * n
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: n - counts.sum()]] += 1
    return counts


def limited(fractions: NDArray[np.float64], limits: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """n split by fractions, no part above its limit; what a full part leaves goes to the others by their fractions."""
    counts, open_ = np.zeros(len(fractions), np.int64), np.ones(len(fractions), np.bool_)
    while True:
        counts[open_] = largest_remainder(fractions[open_] / fractions[open_].sum(), n - counts[~open_].sum())
        over = open_ & (counts > limits)
        if not over.any():
            return counts
        counts[over], open_ = limits[over], open_ & ~over


def joined(parts: list[Picked], order: NDArray[np.int64]) -> Picked:
    """Several batches as one in this order; parts without weights count 1 when others have some."""
    rows = np.concatenate([part.rows for part in parts])[order]
    weights = [part.importance_weights for part in parts]
    if all(weight is None for weight in weights):
        return Picked(rows)
    filled = [np.ones(len(p.rows)) if w is None else w for p, w in zip(parts, weights, strict=True)]
    return Picked(rows, np.concatenate(filled)[order])


def _code(columns: Columns, name: str) -> int:
    return columns.sources.index(name) if name in columns.sources else -1
