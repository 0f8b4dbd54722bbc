"""Threads that share an engine: it holds the newest weights that any of them knew, and loads them once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from ostinato.loop.held import HeldWeights


class Engine:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.loads: list[int] = []
        self.first = threading.Event()

    def load(self, weights, version):
        """Slow enough for others to ask meanwhile."""
        self.first.wait(timeout=30)
        self.loads.append(version)

    def stream(self, requests):
        """Not asked for."""
        raise AssertionError


def test_threads_when_they_want_one_version_load_it_once() -> None:
    held, engine = HeldWeights(), Engine()
    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(held.bring, engine, {}, 3) for _ in range(6)]
        engine.first.set()
        for future in waiting:
            future.result()
    assert engine.loads == [3]


def test_a_late_thread_when_newer_weights_are_there_does_not_bring_older_ones() -> None:
    held, engine, other = HeldWeights(), Engine(), Engine()
    engine.first.set()
    other.first.set()
    for version in (0, 2, 1, 2, 3):
        held.bring(engine, {}, version)
    held.bring(other, {}, 1)
    assert (engine.loads, other.loads) == ([0, 2, 3], [1])
    held.forget()
    held.bring(engine, {}, 3)
    assert engine.loads == [0, 2, 3, 3]
