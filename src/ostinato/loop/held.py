"""Which weights the engines hold."""

from __future__ import annotations

import threading

from ostinato.protocols import Generator, Weights


class HeldWeights:
    """The version that each engine was given last. Threads that share an engine ask here before they generate."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._locks: dict[int, threading.Lock] = {}

    def bring(self, engine: Generator, weights: Weights, version: int) -> None:
        """Let `engine` hold these weights or newer ones: a thread that was late never brings it back to older ones."""
        with self._locks.setdefault(id(engine), threading.Lock()):
            if self._versions.get(id(engine), -1) < version:
                engine.load(weights, version)
                self._versions[id(engine)] = version

    def forget(self) -> None:
        """Engines load again before they generate next, whatever they had."""
        self._versions.clear()
