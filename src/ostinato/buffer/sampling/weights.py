"""Weights of all rows in a sum tree, brought up to date when a batch is drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.decay import (
    AgeFactors,
    DecayLaw,
    Exponential,
    ExponentialWeighting,
    Undecayed,
    Weighting,
)
from ostinato.buffer.sampling.pending import Pending
from ostinato.buffer.sampling.priorities import Priorities
from ostinato.buffer.sampling.protocol import Rows
from ostinato.buffer.settings import is_function
from ostinato.buffer.sumtree import MinTree, SumTree
from ostinato.errors import ConfigError
from ostinato.setting_checks import shown

CEILING, FLOOR = 1e200, 1e-150  # beyond these the common factor is chosen anew


class Weights:
    """The weight of every row, 0 where it is dead.

    Changes are noted when they happen and worked in when a batch is drawn, all at once: a priority function that
    fails does so in the draw, before anything has changed, and fails again until its input is mended.
    """

    def __init__(self, priorities: Priorities, weighting: Weighting) -> None:
        self._priorities, self._weighting = priorities, weighting
        self._pending = Pending()
        self.tree = SumTree()
        self._least: MinTree | None = None  # kept once somebody has asked
        self._faint = False

    @property
    def least_positive(self) -> float:
        """The least weight above 0, inf when there is none."""
        if self._least is None:
            self._least = MinTree()
            self._least.reset(_without_zeros(self.tree.leaves))
        return self._least.value

    def rebuilt(self) -> None:
        """Everything is out of date."""
        self._pending.rebuilt()

    def changed(self, columns: Columns, rows: Rows) -> None:
        """These rows are out of date."""
        self._pending.changed(columns, rows)

    def refresh(self, columns: Columns) -> None:
        """Bring the tree up to date. Raises `DataError` when a priority or a decay factor cannot be used."""
        if self._pending.everything:
            self._renew(columns)
        elif self._pending:
            self._update(columns, self._pending.rows())
        if self._faint and self.tree.total < FLOOR:
            self._renew(columns)
        self._pending.done()

    def _renew(self, columns: Columns) -> None:
        live = columns.live()
        priorities = self._priorities(columns, live)
        self._weighting.rebase(columns, live, priorities)
        weights = self._weighting.weights(columns, live, priorities)
        self._faint = _faint(weights, priorities)
        every = np.zeros(columns.span)
        every[live] = weights
        self._write_all(columns, every)

    def _update(self, columns: Columns, rows: Rows) -> None:
        alive = columns.alive[rows]
        live, weights = rows[alive], np.zeros(len(rows))
        priorities = self._priorities(columns, live)
        weights[alive] = self._weighting.weights(columns, live, priorities)
        if weights.max(initial=0.0) > CEILING:
            self._renew(columns)
            return
        self._faint = self._faint or _faint(weights[alive], priorities)
        self._write(columns, rows, weights)

    def _write_all(self, columns: Columns, weights: NDArray[np.float64]) -> None:
        self.tree.reset(weights)
        if self._least is not None:
            self._least.reset(_without_zeros(weights))

    def _write(self, columns: Columns, rows: Rows, weights: NDArray[np.float64]) -> None:
        self.tree.grow(columns.span)
        self.tree.set(rows, weights)
        if self._least is not None:
            self._least.grow(columns.span)
            self._least.set(rows, _without_zeros(weights))


class AgedWeights(Weights):
    """Weights times a factor of the age: one pass over all rows when the train step has changed."""

    def __init__(self, priorities: Priorities, exponent: float, decay: DecayLaw, age_from: str) -> None:
        super().__init__(priorities, Undecayed(exponent))
        self._factors = AgeFactors(exponent, decay, age_from)
        self._ageless = np.empty(0)
        self._aged = False

    def refresh(self, columns: Columns) -> None:
        if self._factors.step != columns.train_step:
            self._age(columns)
        super().refresh(columns)
        if not self._aged:
            self._write_all(columns, self._ageless[: columns.span])

    def _age(self, columns: Columns) -> None:
        """Factors of the ages that there are now; the weights follow at the end of `refresh`."""
        self._factors.renew(columns)
        self._aged = False

    def _renew(self, columns: Columns) -> None:
        self._age(columns)
        super()._renew(columns)

    def _write_all(self, columns: Columns, weights: NDArray[np.float64]) -> None:
        self._ageless, self._aged = weights, True
        super()._write_all(columns, weights * self._factors(columns, slice(None)))

    def _write(self, columns: Columns, rows: Rows, weights: NDArray[np.float64]) -> None:
        if columns.span > len(self._ageless):
            self._ageless = np.concatenate([self._ageless, np.zeros(columns.span)])
        self._ageless[rows] = weights
        with np.errstate(over="ignore"):
            aged = weights * self._factors(columns, rows)
        if not self._factors.cover(columns, rows[weights > 0]) or aged.max(initial=0.0) > CEILING:
            self._age(columns)
        elif self._aged:
            super()._write(columns, rows, aged)


def weights_of(priorities: Priorities, exponent: float, decay: Exponential | DecayLaw | None, age_from: str) -> Weights:
    """The cheapest exact way to weigh by this decay. Raises `ConfigError` when it is none."""
    if decay is None:
        return Weights(priorities, Undecayed(exponent))
    if isinstance(decay, Exponential):
        return Weights(priorities, ExponentialWeighting(exponent, decay, age_from))
    if not is_function(decay):
        raise ConfigError(f"decay must be None, Exponential(tau) or a function of ages, got {shown(decay)}")
    return AgedWeights(priorities, exponent, decay, age_from)


def _faint(weights: NDArray[np.float64], priorities: NDArray[np.float64]) -> bool:
    """Whether a row that may be drawn has a weight too small to be exact at the current factor."""
    return bool(np.any((weights < FLOOR) & (priorities > 0)))


def _without_zeros(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(weights > 0, weights, np.inf)
