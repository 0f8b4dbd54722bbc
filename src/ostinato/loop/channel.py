"""Weights handed over inside one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ostinato.errors import CheckpointError, RunError
from ostinato.protocols import Weights
from ostinato.telemetry import read_arrays, write_arrays


class MemoryChannel:
    """Keeps the newest weights offered; a snapshot, so a reader never sees a step half done."""

    def __init__(self) -> None:
        self._offered: tuple[Weights, int] | None = None

    def publish(self, weights: Weights, version: int) -> None:
        """Offer new weights. Raises `RunError` when the version does not rise."""
        if self._offered is not None and version <= self._offered[1]:
            raise RunError(f"published version {version} after {self._offered[1]}: versions must rise")
        self._offered = (weights, version)

    def latest(self) -> tuple[Weights, int]:
        """The newest weights and their version."""
        if self._offered is None:
            raise RunError("no weights were published yet")
        return self._offered

    def save(self, path: Path) -> None:
        """Write the newest weights as float32 arrays by name."""
        weights, version = self.latest()
        arrays = {f"weights.{name}": np.asarray(value) for name, value in weights.items()}
        write_arrays(path, arrays | {"version": np.array(version)})

    def load(self, path: Path) -> None:
        """Offer what `save` wrote. Raises `CheckpointError` when it does not have the shapes of what is offered now."""
        arrays = read_arrays(path)
        version = int(arrays.pop("version"))
        weights = {name.removeprefix("weights."): array for name, array in arrays.items()}
        for name, value in self.latest()[0].items():
            got = np.shape(weights[name]) if name in weights else None
            if got != tuple(value.shape):
                raise CheckpointError(f"{path}: {name} has shape {got}, expected {tuple(value.shape)}")
        self._offered = (weights, version)
