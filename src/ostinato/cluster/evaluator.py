"""Evaluations by the generators of the run: no further process holds a model for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ostinato.cluster.generator import RayGenerator
from ostinato.cluster.weights import StoredWeights, WeightShelf
from ostinato.errors import RunError
from ostinato.protocols import GroupRequest, Weights
from ostinato.rollouts import Rollouts

AT_ONCE = 64
"""Prompts that a generator is given at a time."""


class SharedGenerators:
    """A `protocols.Generator` that deals its requests out to all of `generators`, which may be busy with others.

    They are looked up when something is asked for: they may be made after this.
    """

    def __init__(self, generators: Sequence[RayGenerator], shelf: WeightShelf) -> None:
        self._generators, self._shelf = generators, shelf
        self._wanted: tuple[StoredWeights, int] | None = None

    def load(self, weights: Weights, version: int) -> None:
        """Everything asked for from now on is for these weights."""
        self._wanted = self._shelf.stored(weights), version

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """Each group, in the order of `requests`."""
        if self._wanted is None:
            raise RunError("an evaluation was asked for before it was given weights")
        weights, version = self._wanted
        parts = [requests[first : first + AT_ONCE] for first in range(0, len(requests), AT_ONCE)]
        workers = [self._generators[i % len(self._generators)] for i in range(len(parts))]
        with ThreadPoolExecutor(max_workers=len(self._generators), thread_name_prefix="evaluation") as pool:
            for answer in pool.map(lambda w, part: w.generate(part, weights, version), workers, parts):
                yield from answer.groups
