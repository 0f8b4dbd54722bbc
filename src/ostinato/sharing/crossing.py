"""Two lines of waiters before one buffer: those who add and those who draw. First come, first served in each.

Inside a line nobody overtakes, so a large request is not starved by small ones; the lines do not wait for each other's
order. A waiter is woken and then does its work itself: one that gave up in between has taken nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ostinato.sharing.failures import CircularWait

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What a finished attempt gave."""

    value: T


@dataclass(eq=False, slots=True)
class Turn:
    """One waiter. `wake()` may be called from any thread; `tried`: the state in which it last had to wait."""

    wake: Callable[[], None]
    wants: str
    tried: int = field(default=-1)


class Line:
    """Waiters of one kind, the first of whom may go when the buffer lets it."""

    def __init__(self) -> None:
        self.turns: deque[Turn] = deque()

    def first(self) -> Turn | None:
        """Whose turn it is."""
        return self.turns[0] if self.turns else None


class Crossing:
    """One lock, two lines."""

    def __init__(self) -> None:
        self.adding, self.drawing = Line(), Line()
        self._lock = threading.RLock()
        self._state = 0
        self._alone = 0  # blocks of `alone` that are open, all of one thread

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock, whoever waits; afterwards the first of both lines look again."""
        with self._lock:
            self._alone += 1
            try:
                yield
            finally:
                self._alone -= 1
                self.changed()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Hold the lock to read."""
        with self._lock:
            yield

    @contextmanager
    def turn(self, line: Line, wake: Callable[[], None], wants: str) -> Iterator[Turn]:
        """Stand in line during the block."""
        turn = Turn(wake, wants)
        with self._lock:
            line.turns.append(turn)
        try:
            yield turn
        finally:
            with self._lock:
                line.turns.remove(turn)
                self._wake(line)

    def attempt(self, turn: Turn, line: Line, act: Callable[[], Done[T] | None]) -> Done[T] | None:
        """`act()` under the lock if it is this waiter's turn; None when it has to wait, or `act` says so.

        Raises `CircularWait` when the first of the other line found, in this same state, that it has to wait, or this
        thread holds the lock alone, so that nobody can change anything.
        """
        with self._lock:
            mine = line.first() is turn
            done = act() if mine else None
            if done is not None:
                self.changed()
                return done
            if self._alone:
                raise CircularWait(f"{turn.wants} would have to wait inside exclusively(), where nobody else can move")
            if not mine:
                return None
            turn.tried = self._state
            other = (self.drawing if line is self.adding else self.adding).first()
            if other is not None and other.tried == self._state:
                raise CircularWait(f"{turn.wants} waits for {other.wants}, which waits for it: nobody can move")
            return None

    def changed(self) -> None:
        """The buffer is another one: who was refused may ask again. The lock must be held."""
        self._state += 1
        self._wake(self.adding)
        self._wake(self.drawing)

    def _wake(self, line: Line) -> None:
        first = line.first()
        if first is not None:
            first.wake()
