"""Weights in the object store: written once for each version, read by every generator without a copy of its own."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from ostinato.cluster.failures import into_store, one_line
from ostinato.errors import StateLostError
from ostinato.protocols import Weights

_SERIALS = itertools.count()


class StoredWeights(Mapping[str, Any]):
    """`protocols.Weights` that lie in the object store: arrays by name, fetched when somebody looks at them.

    `serial` rises from one to the next, where versions come again after a rollback. Raises `StateLostError` when the
    trainer died before it had written them.
    """

    def __init__(self, ref: ray.ObjectRef[Any]) -> None:
        self.ref, self.serial = ref, next(_SERIALS)

    def __getitem__(self, name: str) -> Any:
        return self._arrays()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays())

    def __len__(self) -> int:
        return len(self._arrays())

    def _arrays(self) -> dict[str, Any]:
        try:
            arrays: dict[str, Any] = ray.get(self.ref)
        except RayError as error:
            raise StateLostError(f"weights are gone: {one_line(error)}") from error
        return arrays


class WeightShelf:
    """Puts each snapshot of weights into the object store once, whoever asks for it first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[Weights, StoredWeights] | None = None

    def stored(self, weights: Weights) -> StoredWeights:
        """The same weights, in the object store."""
        if isinstance(weights, StoredWeights):
            return weights
        with self._lock:
            if self._newest is None or self._newest[0] is not weights:
                arrays = {name: np.asarray(value) for name, value in weights.items()}
                self._newest = weights, StoredWeights(into_store(arrays))
            return self._newest[1]
