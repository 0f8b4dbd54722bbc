"""Whose turn it is on hardware that generates and trains one after the other."""

from __future__ import annotations

import time

from ostinato.loop.loop import Loop
from ostinato.protocols import Sleeper


class Turns:
    """Wakes the engines of a loop that can sleep (`Sleeper`) for their turn and puts them to sleep for the trainer's.

    It finds them awake. Turns that change and the seconds of sleeping and waking go into the ledger, `switches` and
    `switch_s`; they are in no busy time. Build it when the loop's state is loaded: a checkpoint is written in the
    trainer's turn.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._training = loop.ledger.train_step > 0
        self._awake = True

    def enter(self, training: bool) -> None:
        """The trainer works next, or an engine."""
        self._set_awake(not training)
        if training != self._training:
            self._training = training
            self._loop.ledger.switches += 1

    def lend(self) -> None:
        """Somebody else generates with the engines between two works, an evaluation: no change of turns. The loop then
        loads its weights again."""
        self._set_awake(True)
        self._loop.reload()

    def _set_awake(self, awake: bool) -> None:
        if awake == self._awake:
            return
        start = time.perf_counter()
        for engine in self._loop.parts.engines:
            if isinstance(engine, Sleeper) and awake:
                engine.wake()
            elif isinstance(engine, Sleeper):
                engine.sleep()
        self._awake = awake
        if awake:
            self._loop.reload()
        self._loop.ledger.switch_s += time.perf_counter() - start
