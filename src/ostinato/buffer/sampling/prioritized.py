"""Prioritized draws: any priority, exponent, freshness and correction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.sampling.correction import Correction
from ostinato.buffer.sampling.decay import DecayLaw, Exponential
from ostinato.buffer.sampling.draws import with_replacement, without_replacement
from ostinato.buffer.sampling.pending import Pending
from ostinato.buffer.sampling.priorities import Priorities, PriorityFunction
from ostinato.buffer.sampling.protocol import Picked, Rows, enough
from ostinato.buffer.sampling.weights import weights_of
from ostinato.buffer.schedule import Schedule
from ostinato.buffer.sumtree import MaxTree
from ostinato.errors import ConfigError
from ostinato.setting_checks import check_choice, check_flag, check_not_negative, shown

AGES = ("insert_step", "policy_version_min", "birth_step")


class Prioritized:
    """Draws a rollout with probability proportional to (priority * freshness) ** exponent (Schaul et al. 2016).

    by: "priority" (written back, see `new_priority`), another column (its absolute value) or a function of
        (columns, rows), evaluated when a row was added, drawn or written.
    exponent: 0 draws uniformly, priorities of 0 included. With any other one a rollout of priority 0 is drawn only when
        all have priority 0; then draws are uniform.
    beta: exponent of the correction, a number or schedule in [0, 1], None for no weights; normalize: see `Correction`.
    stratified: one draw in each of n equal parts of the total; only with replacement.
    replacement: False draws n different rollouts one after the other (`draws.without_replacement`); fewer than n of
        positive weight are filled up uniformly from those of weight 0.
    eps: added to every priority before the exponent.
    decay: None, `Exponential(tau)` (exact, and free however many rollouts are held) or any function of ages (one
        vectorised pass when the train step changes). Age is counted from the column `age_from`: "insert_step", the
        train step at which the rollout was stored (arXiv 2604.16918), "policy_version_min" (staleness) or "birth_step".
        A weight below 1e-200 of the greatest may be taken for 0.
    new_priority: what a rollout added without a priority gets in the priority column: "max", the greatest among those
        held (1 when none is), or a number.

    O(n log N) a draw. Raises `ConfigError` for settings without meaning, `DataError` when a priority cannot be used.
    """

    def __init__(
        self,
        by: str | PriorityFunction = "priority",
        exponent: float = 0.6,
        *,
        beta: float | Schedule | None = None,
        normalize: str | None = "buffer",
        stratified: bool = True,
        replacement: bool = True,
        eps: float = 0.0,
        decay: Exponential | DecayLaw | None = None,
        age_from: str = "insert_step",
        new_priority: str | float = "max",
    ) -> None:
        exponent = check_not_negative("the priority exponent", exponent)
        check_choice("age_from", age_from, AGES)
        if isinstance(new_priority, str) and new_priority != "max":
            raise ConfigError(f"new_priority must be 'max' or a number, got {shown(new_priority)}")
        self._stratified = check_flag("stratified", stratified)
        self._replacement = check_flag("replacement", replacement)
        self._correction = Correction(beta, normalize)
        self._priorities = Priorities(by, eps)
        self._weights = weights_of(self._priorities, exponent, decay, age_from)
        self._highest = _newcomers(new_priority)

    @property
    def repeats(self) -> bool:
        return self._replacement

    @property
    def corrects(self) -> bool:
        """Whether its batches carry importance weights."""
        return self._correction.beta is not None

    @property
    def heeds_draws(self) -> bool:
        """Whether a priority may change because its row was drawn."""
        return not isinstance(self._priorities.by, str) or self._priorities.by in ("uses", "last_use_step")

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Picked:
        size = enough(self, columns, n)
        rows = self.draw(columns, size, rng) if self._replacement else self._different(columns, size, rng)
        return Picked(rows, self._correction.weights(self, columns, rows))

    def draw(self, columns: Columns, n: int, rng: np.random.Generator) -> Rows:
        """n rows, repeats allowed, in random order."""
        self._weights.refresh(columns)
        if not self._weights.tree.positive:
            return columns.select(rng.integers(len(columns), size=n))
        return with_replacement(self._weights.tree, n, rng, stratified=self._stratified)

    def probabilities(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """Probability of each of these live rows in one draw with replacement, float64 (n,)."""
        self._weights.refresh(columns)
        tree = self._weights.tree
        return tree.leaves[rows] / tree.total if tree.positive else np.full(len(rows), 1 / len(columns))

    def least_probability(self, columns: Columns) -> float:
        """The least probability of any live row, 0 when some live row cannot be drawn."""
        least = self.least_drawable(columns)
        return least if self._weights.tree.positive in (0, len(columns)) else 0.0

    def least_drawable(self, columns: Columns) -> float:
        """The least probability above 0 of any live row."""
        self._weights.refresh(columns)
        tree = self._weights.tree
        return self._weights.least_positive / tree.total if tree.positive else 1 / len(columns)

    def new_priority(self, columns: Columns) -> float:
        """What a rollout added now without a priority gets in the priority column."""
        return self._highest if isinstance(self._highest, float) else self._highest.value(columns)

    def rebuilt(self, columns: Columns) -> None:
        """Row numbers changed, or everything did. Raises `ConfigError` when there is no column of the name given."""
        self._priorities.check_column(columns)
        self._weights.rebuilt()
        if not isinstance(self._highest, float):
            self._highest.pending.rebuilt()

    def changed(self, columns: Columns, rows: Rows) -> None:
        """These rows were appended, removed, drawn or written."""
        self._weights.changed(columns, rows)
        if not isinstance(self._highest, float):
            self._highest.pending.changed(columns, rows)

    def _different(self, columns: Columns, n: int, rng: np.random.Generator) -> Rows:
        self._weights.refresh(columns)
        tree = self._weights.tree
        rows = without_replacement(tree, min(n, tree.positive), rng)
        if len(rows) == n:
            return rows
        zeros = columns.live()[tree.leaves[columns.live()] == 0]
        return np.concatenate([rows, rng.choice(zeros, n - len(rows), replace=False)])


def _newcomers(new_priority: str | float) -> HighestPriority | float:
    if isinstance(new_priority, str):
        return HighestPriority()
    return check_not_negative("new_priority", new_priority)


class HighestPriority:
    """The greatest value of the priority column among live rows; it falls when that rollout leaves."""

    def __init__(self) -> None:
        self.pending = Pending()
        self._tree = MaxTree()

    def value(self, columns: Columns) -> float:
        """The greatest priority held, 1 when nothing is held."""
        if self.pending.everything:
            self._tree.reset(np.where(columns.alive, columns["priority"], -np.inf))
        else:
            rows = self.pending.rows()
            self._tree.grow(columns.span)
            self._tree.set(rows, np.where(columns.alive[rows], columns["priority"][rows], -np.inf))
        self.pending.done()
        return self._tree.value if len(columns) else 1.0
