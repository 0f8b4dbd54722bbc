"""What a sampler is, what it returns, and how one sampler talks to another inside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.errors import DataError
from ostinato.setting_checks import shown

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Picked:
    """Chosen rows, int64 (n,), and their importance weights, float64 (n,); None: every weight is 1.

    Raises `DataError` for a weight that is NaN, infinite or negative.
    """

    rows: Rows
    importance_weights: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        weights = self.importance_weights
        if not isinstance(weights, np.ndarray) or not weights.size or weights.dtype.kind != "f":
            return  # the buffer says what it expects instead
        if not (weights.min() >= 0 and weights.max() < np.inf):
            bad = int(np.flatnonzero(~((weights >= 0) & (weights < np.inf)))[0])
            raise DataError(
                f"importance weight {bad} of a batch is {weights.flat[bad]}, expected a finite one of at least 0"
            )


class Sampler(Protocol):
    """Chooses rows; never changes the buffer."""

    def __call__(self, columns: Columns, n: int | None, rng: np.random.Generator) -> Picked | Rows:
        """Exactly n live rows (None: as many as a sampler with `decides_size` decides), or `DataError`."""

    @property
    def repeats(self) -> bool:
        """Whether one batch may hold a row twice, so that fewer than n rows suffice."""


@runtime_checkable
class Indexed(Protocol):
    """Keeps something derived from the columns, keyed by row; belongs to one buffer."""

    def rebuilt(self, columns: Columns) -> None:
        """Row numbers changed, or everything did: derive anew."""

    def changed(self, columns: Columns, rows: Rows) -> None:
        """These rows were appended, removed, drawn, or their columns written."""


class IndexedSampler(Sampler, Indexed, Protocol):
    """A sampler with an index over the rows, which the buffer keeps informed."""


@runtime_checkable
class Remembering(Protocol):
    """Holds what cannot be derived from the columns, so a saved buffer keeps it."""

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Plain arrays for `numpy.savez`."""

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state_arrays` gave; the next `rebuilt` matches it with the rows. Raises `CheckpointError`."""


@runtime_checkable
class Law(Protocol):
    """A probability for every live row, drawn with replacement: what a `Mixture` is made of."""

    def draw(self, columns: Columns, n: int, rng: np.random.Generator) -> Rows:
        """n rows, repeats allowed."""

    def probabilities(self, columns: Columns, rows: Rows) -> NDArray[np.float64]:
        """Probability of each of these live rows in one draw, float64 (n,)."""

    def least_probability(self, columns: Columns) -> float:
        """The least probability of any live row, 0 included."""

    def least_drawable(self, columns: Columns) -> float:
        """The least probability above 0 of any live row."""


def picked(result: Picked | Rows) -> Picked:
    """What a sampler returned, rows alone or with weights, in one form."""
    return result if isinstance(result, Picked) else Picked(result)


def size_given(sampler: object, n: int | None) -> int:
    """n as int, or `DataError` when it is None, no integer or below 1 and this sampler cannot decide it."""
    name = type(sampler).__name__
    if n is None:
        raise DataError(f"{name} does not decide the size of a batch: ask for n rollouts")
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise DataError(f"{name} cannot draw {shown(n)} rollouts, expected an integer")
    if n < 1:
        raise DataError(f"{name} cannot draw {n} rollouts, expected at least 1")
    return int(n)


def enough(sampler: Sampler, columns: Columns, n: int | None) -> int:
    """n, or `DataError` when it is None or fewer rollouts are held than this sampler needs for n."""
    size = size_given(sampler, n)
    if len(columns) < (1 if sampler.repeats else size):
        name, rule = type(sampler).__name__, "with" if sampler.repeats else "without"
        raise DataError(f"{name} cannot draw {size} {rule} replacement from the {len(columns)} rollouts held")
    return size


def tell_rebuilt(sampler: object, columns: Columns) -> None:
    """Pass the message on to a sampler inside another one, if it keeps an index."""
    if isinstance(sampler, Indexed):
        sampler.rebuilt(columns)


def tell_changed(sampler: object, columns: Columns, rows: Rows) -> None:
    """Pass the message on to a sampler inside another one, if it keeps an index."""
    if isinstance(sampler, Indexed):
        sampler.changed(columns, rows)


def states_of(parts: Mapping[str, object]) -> dict[str, NDArray[Any]]:
    """State of the samplers inside another one, each array prefixed with the name of its part."""
    return {
        f"{name}/{key}": array
        for name, part in parts.items()
        if isinstance(part, Remembering)
        for key, array in part.state_arrays().items()
    }


def load_states(parts: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Inverse of `states_of`."""
    for name, part in parts.items():
        if isinstance(part, Remembering):
            prefix = f"{name}/"
            part.load_state_arrays({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})


def new_priority_of(samplers: Iterable[object], columns: Columns) -> float:
    """What the first of these samplers that has an opinion gives a new rollout, else 1."""
    for sampler in samplers:
        rule = getattr(sampler, "new_priority", None)
        if rule is not None:
            return float(rule(columns))
    return 1.0
